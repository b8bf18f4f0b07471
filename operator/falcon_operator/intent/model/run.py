"""Convert the intent to a TrainingRun and back, and read what another version has stored.

A run holds no more than 512 KiB for 4 096 members. So a member's place in the list is its replica, and only the suffix
of its pod's name is stored. What an older version stored is upgraded first (``layout``). What a newer version has
written and this version does not know is skipped: unknown fields are ignored, and a part that holds an unknown word is
left out and named. Such a part never stops a job. A run that says that this version cannot read it is not decoded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_type_hints

import msgspec

from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery import Culprit, Member, Membership, RecoveryState, SlowIncident
from falcon_operator.api.common import API_VERSION, LABEL_JOB, LABEL_JOB_UID, ObjectMeta
from falcon_operator.api.trainingjob import Counters, TrainingJob
from falcon_operator.api.trainingrun import RunMember, TrainingRun, TrainingRunSpec
from falcon_operator.base.ports import Manifest, Oversize
from falcon_operator.intent.model import layout
from falcon_operator.intent.model.intent import Intent
from falcon_operator.manifests.pods import owner_reference

# The definition has no schema for these two, so their size is bounded here (ADR 124). The run must stay well below the
# 1.5 MiB that etcd takes.
MOST_BYTES = {"recovery": 256 * 1024, "history": 256 * 1024}
_PHASES = ("Stop", "Run", "Finish")
replace = msgspec.structs.replace


def encode(job: TrainingJob, intent: Intent) -> TrainingRunSpec:
    """Return the intent as it is stored.

    Raises:
        Oversize: where a part without a schema has more than ``MOST_BYTES``. Nothing is stored then.
    """
    # Before the object is made: the error has to name the part that grew, which the API server would not.
    _check_size(job, "recovery", intent.recovery)
    _check_size(job, "history", intent.history)
    membership = intent.membership
    # Only the part of a pod's name that does not follow from the job is stored: a run of a thousand pods must fit into
    # one object.
    start = len(job.metadata.name) + 1
    stored_in = layout.LAYOUTS[-1]
    return TrainingRunSpec(
        version=stored_in.version,
        readable_from=stored_in.readable_from,
        readable_from_release=stored_in.release,
        generation=membership.generation,
        phase=membership.phase,
        phase_since=membership.since,
        nodes=sum(bool(member.node) for member in membership.members),
        members=[
            RunMember(
                suffix=member.pod_name[start + len(str(member.number)) + 1 :],
                number=member.pod_number,
                uid=member.pod_uid,
                node=member.node,
            )
            for member in membership.members
        ],
        master_addr=intent.master_addr,
        master_port=intent.master_port,
        replacements=membership.replacements,
        standbys=membership.standbys,
        joining=membership.joining,
        exclusions=membership.exclusions,
        lost_pods=membership.lost_pods,
        done=membership.done,
        pods_made=membership.pods_made,
        counters=Counters(restarts=membership.restarts, replacements=membership.replaced),
        gang=intent.gang,
        recovery=intent.recovery,
        preflight=intent.preflight,
        smoke=intent.smoke,
        demand=intent.demand,
        verdicts=intent.verdicts,
        history=intent.history,
        started_at=intent.started_at,
        end=intent.end,
        held=intent.held,
        resized=intent.resized,
    )


def _check_size(job: TrainingJob, field: str, value: Any) -> None:
    size, most = len(msgspec.json.encode(value)), MOST_BYTES[field]
    if size > most:
        namespace, name = job.metadata.namespace, job.metadata.name
        raise Oversize(
            f"spec.{field} of TrainingRun {namespace}/{name} would have {size} bytes, at most {most} are stored: run"
            f" kubectl delete trainingrun {name} -n {namespace}. The operator makes it again from the pods, training"
            " goes on, and the incidents so far are forgotten. Report it with kubectl falcon bundle"
        )


def decode(job: TrainingJob, spec: TrainingRunSpec) -> Intent:
    """Return the stored intent of the job."""
    procs = job.spec.procs_per_replica
    # Another version's phase: a generation that has an address may run, and its plan stays as it is.
    phase = spec.phase if spec.phase in _PHASES else "Run" if spec.master_addr else "Stop"
    return Intent(
        membership=Membership(
            generation=spec.generation,
            phase=phase,  # type: ignore[arg-type]  # one of _PHASES
            since=spec.phase_since,
            members=[
                Member(
                    replica=replica,
                    pod_name=_pod_name(job, replica, member),
                    pod_number=member.number,
                    pod_uid=member.uid,
                    node=member.node,
                    first_rank=replica * procs,
                )
                for replica, member in enumerate(spec.members)
            ],
            replacements=spec.replacements,
            standbys=spec.standbys,
            joining=spec.joining,
            exclusions=spec.exclusions,
            lost_pods=spec.lost_pods,
            done=spec.done,
            pods_made=spec.pods_made,
            restarts=spec.counters.restarts,
            replaced=spec.counters.replacements,
        ),
        master_addr=spec.master_addr,
        master_port=spec.master_port,
        gang=spec.gang,
        recovery=spec.recovery,
        preflight=spec.preflight,
        smoke=spec.smoke,
        demand=spec.demand,
        verdicts=spec.verdicts,
        history=spec.history,
        started_at=spec.started_at,
        end=spec.end,
        held=spec.held,
        resized=spec.resized,
    )


def _pod_name(job: TrainingJob, replica: int, member: RunMember) -> str:
    number = replica if member.number is None else member.number
    return f"{job.metadata.name}-{number}-{member.suffix}"


def build_run(job: TrainingJob, spec: TrainingRunSpec, resource_version: str) -> Manifest:
    """Build the object that holds the intent. With ``resource_version`` it replaces only that version of the object."""
    meta = job.metadata
    return {
        "apiVersion": API_VERSION,
        "kind": "TrainingRun",
        "metadata": {
            "name": meta.name,
            "namespace": meta.namespace,
            "labels": {LABEL_JOB: meta.name, LABEL_JOB_UID: meta.uid},
            "ownerReferences": [owner_reference(job)],
            **({"resourceVersion": resource_version} if resource_version else {}),
        },
        "spec": msgspec.to_builtins(spec),
    }


def read_run(data: Mapping[str, Any]) -> TrainingRun:
    """Return the run in an object's decoded JSON; parts that this version cannot read are left out and named.

    ``refusal`` is set, and nothing is decoded, where the run says that this version must not read it.
    """
    spec = data.get("spec") or {}
    raw = data.get("metadata") or {}
    metadata = msgspec.convert(raw, ObjectMeta, strict=False)
    metadata = replace(metadata, owner_uid=_owner_uid(raw, metadata.name))
    if refused := layout.refusal(spec, metadata.namespace, metadata.name):
        return TrainingRun(metadata=metadata, refusal=refused)
    problems: list[str] = []
    decoded = _lenient(TrainingRunSpec, layout.upgraded(spec), "spec", problems)
    return TrainingRun(metadata=metadata, spec=decoded, problems=tuple(problems))


def _owner_uid(raw: Mapping[str, Any], name: str) -> str:
    """Return the uid of the job whose run this is; "" for an object of the name that no operator has made.

    The label counts where the owner reference was removed: only the operator writes runs.
    """
    controller = next((owner for owner in raw.get("ownerReferences") or [] if owner.get("controller")), None)
    if controller is None:
        return str((raw.get("labels") or {}).get(LABEL_JOB_UID, ""))
    is_job = controller.get("kind") == "TrainingJob" and controller.get("name") == name
    return str(controller.get("uid", "")) if is_job else ""


def _lenient(type_: type[Any], value: Mapping[str, Any], path: str, problems: list[str]) -> Any:
    """Convert the whole value; if that fails, convert each field by itself. A list keeps the items that can be read."""
    try:
        return msgspec.convert(value, type_, strict=False)
    except msgspec.ValidationError:
        pass
    hints = get_type_hints(type_)
    fields: dict[str, Any] = {}
    for field in msgspec.structs.fields(type_):
        if field.encode_name in value:
            where = f"{path}.{field.encode_name}"
            fields |= _field(field.name, hints[field.name], value[field.encode_name], where, problems)
    return type_(**fields)


def _field(name: str, hint: Any, raw: Any, where: str, problems: list[str]) -> dict[str, Any]:
    """Return the field as far as it can be read; empty where the field's default has to be used."""
    if hint is RecoveryState and isinstance(raw, Mapping):
        return {name: _lenient(RecoveryState, raw, where, problems)}
    try:
        return {name: msgspec.convert(raw, hint, strict=False)}
    except msgspec.ValidationError as error:
        problems.append(f"{where}: {error}")
        return {name: _readable_items(raw, hint)} if isinstance(raw, list) else {}


def _readable_items(raw: list[Any], hint: Any) -> list[Any]:
    kept: list[Any] = []
    for item in raw:
        try:
            kept += cast(list[Any], msgspec.convert([item], hint, strict=False))
        except msgspec.ValidationError:
            continue
    return kept


def lasting(spec: TrainingRunSpec) -> TrainingRunSpec:
    """Return the run without the figures that grow with every look.

    If these figures are lost, the operator counts them again within a short time.
    """
    recovery = spec.recovery
    levels, suspicions = recovery.levels, recovery.suspicions
    # Whether a figure is known decides, and is kept: 1 stands for every value, so that its changes cost no write.
    if levels.healthy_ns is not None:
        levels = replace(levels, healthy_ns=1)
    if levels.settled is not None:
        levels = replace(levels, settled=replace(levels.settled, iteration_ns=1, noise=0.0, iterations=1))
    levels = replace(levels, slowest=None)
    if suspicions.since_start is not None:
        since_start = replace(suspicions.since_start, reports=0, counted_iteration=0)
        suspicions = replace(suspicions, since_start=since_start)
    if suspicions.compared is not None:
        compared = replace(suspicions.compared, reports=0, counted_iteration=0)
        suspicions = replace(suspicions, compared=compared)
    recovery = replace(
        recovery,
        levels=levels,
        suspicions=replace(suspicions, grown=None),
        slowdowns=[_lasting_slow(slow) for slow in recovery.slowdowns],
    )
    return replace(spec, recovery=recovery)


def _lasting_slow(slow: SlowIncident) -> SlowIncident:
    return replace(
        slow,
        loss=Loss(),
        carried_seconds=0.0,
        outlook=None,
        onset=replace(slow.onset, quiet_iteration=0),
        times=replace(slow.times, slow_ns=0, peak_ns=0, common_ns=0),
        refreshed_at=0.0,
        well_since=None,
        subject=slow.link if slow.culprit is None else _place_of(slow.culprit),
    )


def _place_of(culprit: Culprit) -> Culprit:
    """Return the rank, pod and node that the culprit names, without the evidence."""
    return Culprit(
        rank=culprit.rank,
        replica=culprit.replica,
        pod_name=culprit.pod_name,
        node=culprit.node,
        slowdown=0.0,
        compute_ns=0,
        peers_compute_ns=0,
        cause=culprit.cause,
    )
