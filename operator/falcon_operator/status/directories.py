"""Report which files of the pods' folders in memory are durable: the condition ``CheckpointsDurable``."""

from __future__ import annotations

from falcon_core.wire.saves.directory import DirectoryReport
from falcon_operator.base.time_format import clock_time
from falcon_operator.intent import finish
from falcon_operator.manifests.directory import directory_of
from falcon_operator.status.conditions import Finding
from falcon_operator.status.text.format import listed
from falcon_operator.status.view import View

TYPE = "CheckpointsDurable"
_NEARLY_FULL = 0.9


def checkpoints_durable(view: View) -> Finding:
    """Build the finding on how far the copies of spec.checkpoint.directory are behind."""
    spec = view.snap.job.spec.checkpoint.directory
    if spec is None:
        return Finding(TYPE, False, "NotWanted", "spec.checkpoint.directory is not set", quiet=True)
    members = view.intent.membership.members
    reports = [
        (member.pod_name, report)
        for member in members
        if (report := finish.directory(view.snap, member.pod_uid)) is not None
    ]
    # The gravest state of any pod is shown, in this order: copying fails, memory is nearly full, filling, behind.
    failed = [f"{pod}: {report.error}" for pod, report in reports if report.error]
    if failed:
        message = f"{spec.path} could not be copied to {spec.copy_to}: {listed(failed)}; Falcon tries again each second"
        return Finding(TYPE, False, "CopyFails", message, shown=True)
    full = _nearly_full(view, reports)
    if full:
        message = (
            f"{spec.path} is nearly full in {listed(full)}, with {_backlog(reports)}: raise"
            " spec.checkpoint.directory.memory, save less often, or use a faster volume; a save that does not fit fails"
        )
        return Finding(TYPE, False, "NearlyFull", message, shown=True)
    if any(report.word == "Filling" for _, report in reports):
        return Finding(TYPE, None, "Filling", f"{spec.path} is being filled from {spec.copy_to}")
    newest = max((report for _, report in reports), key=lambda each: each.newest_unix_ms, default=None)
    if newest is None or not newest.newest_unix_ms:
        return Finding(TYPE, False, "NoneYet", f"nothing has been saved to {spec.path} yet", shown=True)
    # By the clock of the pod's node, whatever that says.
    written = clock_time(min(newest.newest_unix_ms / 1000, view.snap.now))
    message = f"the newest durable file is {newest.newest}, written at {written}"
    behind = _backlog(reports)
    if behind:
        return Finding(TYPE, True, "Behind", f"{message}; {behind}")
    return Finding(TYPE, True, "Durable", f"{message}; {spec.copy_to} has all that {spec.path} has")


def waiting(view: View) -> str:
    """Return what a job whose ranks have all ended well still waits for; "" where that is nothing."""
    spec = view.snap.job.spec.checkpoint.directory
    if spec is None or not finish.ranks_done(view.snap, view.intent.membership):
        return ""
    return f"all ranks have ended; {spec.path} is being copied to {spec.copy_to}"


def _nearly_full(view: View, reports: list[tuple[str, DirectoryReport]]) -> list[str]:
    """Return the pods whose memory is nearly taken by what is not durable yet."""
    wanted = directory_of(view.snap.job.spec.checkpoint.directory)
    most = wanted.size_bytes if wanted is not None else 0
    return [pod for pod, report in reports if report.files and report.used_bytes > most * _NEARLY_FULL]


def _backlog(reports: list[tuple[str, DirectoryReport]]) -> str:
    """Return how much is not durable yet; "" for nothing."""
    files = sum(report.files for _, report in reports)
    size = sum(report.bytes for _, report in reports)
    return f"{files} changes ({size / 1e6:.1f} MB) are not copied yet" if files else ""
