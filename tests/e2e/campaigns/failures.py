"""The faults: how each is brought about for real, and which diagnosis and repair somebody who knows it would expect.

Signals, dead nodes and cut links come from outside (``dev.cluster.faults``). What only a program can do, the training
script does when it is ordered to. No machine here has a GPU: an ECC error is the exception that PyTorch raises then.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from random import Random
from typing import Final

import msgspec

from dev.cluster import faults
from dev.kubectl import Json, wait_for
from tests.e2e.bus import gateway_pods
from tests.e2e.campaigns.stage import COMMAND, Stage, is_stalled

AGENT: Final = "python3 -m falcon_agent"
LAUNCHER: Final = "/falcon/bin/falcon-launch"
OPERATOR: Final = "python3 -m falcon_operator"
GATEWAY: Final = "/usr/local/bin/falcon-gateway"
ETCD: Final = "etcd --name"
ECC: Final = "CUDA error: uncorrectable ECC error encountered"
OWN_ERROR: Final = "something odd happened"
CUT_SECONDS: Final = (2.0, 5.0)
AWAY_SECONDS: Final = 8.0  # that the storage stays away

Inject = Callable[[Stage, Random, int], float]


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of fault.

    ``inject`` takes the stage, what chance decides by, and the rank that is hit; it returns when the fault happened
    (unix seconds). ``diagnoses``: those that are right, each a cause or ``cause/class``; none where there is to be
    none. ``restarts``: whether the job has to be restarted. ``leaves``: whether its node has to be left.
    """

    name: str
    inject: Inject
    diagnoses: frozenset[str] = frozenset()
    restarts: bool = True
    leaves: bool = False
    hits_rank: bool = True  # the diagnosis has to name the rank or its node


def _signalled(command: str, number: int) -> Inject:
    """Return how a process of the rank's pod is sent a signal."""

    def inject(stage: Stage, _: Random, rank: int) -> float:
        member = stage.job.member(rank)
        at = time.time()
        _reached(faults.send_signal(member["node"], command, number, member["podUid"]), command)
        return at

    return inject


def _reached(count: int, command: str) -> None:
    if not count:
        raise LookupError(f"no process {command!r} runs where the fault should hit it")


def _ordered(what: str, text: str = "", *, until: str = "begun") -> Inject:
    """Return how the rank's own program fails."""
    return lambda stage, _, rank: stage.order(rank, what, text, until=until)


def _agent_and_rank(stage: Stage, draw: Random, rank: int) -> float:
    at = _signalled(AGENT, signal.SIGKILL)(stage, draw, rank)
    _signalled(COMMAND, signal.SIGKILL)(stage, draw, rank)
    return at


def _killed_when_shown(hang: Inject) -> Inject:
    """Return how a rank hangs, and is killed when the job's status says that training stands still."""

    def inject(stage: Stage, draw: Random, rank: int) -> float:
        at = hang(stage, draw, rank)
        wait_for("Ready says Stalled", lambda: any(map(is_stalled, stage.jobs.since(at))), timeout_seconds=30)
        _signalled(COMMAND, signal.SIGKILL)(stage, draw, rank)
        return at

    return inject


def _operator_killed_as_it_acts(fault: Inject) -> Inject:
    """Return how a fault comes, and the operator is killed as soon as it has written down what it does about it."""

    def inject(stage: Stage, draw: Random, rank: int) -> float:
        before = len(taken_steps(stage.run()))
        at = fault(stage, draw, rank)
        wait_for(
            "the operator has written down its step",
            lambda: len(taken_steps(stage.run())) > before,
            timeout_seconds=30,
            every_seconds=0.02,
        )
        _system_process_killed("operator", OPERATOR)(stage, draw, rank)
        return at

    return inject


def taken_steps(run: Json) -> list[Json]:
    """Return what the operator has done about the open failure; ``run``: its intent."""
    return list(run.get("recovery", {}).get("stop", {}).get("done", []))


def _pod_deleted(stage: Stage, _: Random, rank: int) -> float:
    name = stage.job.member(rank)["podName"]
    at = time.time()
    stage.job.kubectl.run("delete", "pod", name, "--wait=false")
    return at


def _node_killed(stage: Stage, _: Random, rank: int) -> float:
    node = stage.job.member(rank)["node"]
    at = time.time()
    faults.kill(node)
    return at


def _link_cut(stage: Stage, draw: Random, rank: int) -> float:
    node = stage.job.member(rank)["node"]
    at = time.time()
    faults.cut(node)
    time.sleep(draw.uniform(*CUT_SECONDS))
    faults.heal(node)
    return at


def _storage_away(stage: Stage, _: Random, __: int) -> float:
    at = time.time()
    (stage.folder / "storage-away").write_text(str(at + AWAY_SECONDS))
    return at


def _gateway_killed(stage: Stage, draw: Random, _: int) -> float:
    pod = draw.choice(gateway_pods(stage.system))
    at = time.time()
    _reached(faults.send_signal(pod["spec"]["nodeName"], GATEWAY, signal.SIGKILL, pod["metadata"]["uid"]), GATEWAY)
    return at


def _system_process_killed(component: str, command: str) -> Inject:
    def inject(stage: Stage, _: Random, __: int) -> float:
        pods = stage.system.items("pods", f"app.kubernetes.io/component={component}")
        at = time.time()
        _reached(faults.send_signal(pods[0]["spec"]["nodeName"], command, signal.SIGKILL), command)
        return at

    return inject


KILLED: Final = Kind(
    name="rank killed (SIGKILL)", inject=_signalled(COMMAND, signal.SIGKILL), diagnoses=frozenset({"ProcessKilled"})
)
RAISED: Final = Kind(
    name="exception",
    inject=_ordered("raise", OWN_ERROR, until="printed"),
    diagnoses=frozenset({"ProcessFailed/OtherSoftwareError"}),
)
NODE_KILLED: Final = Kind(name="node killed", inject=_node_killed, diagnoses=frozenset({"NodeLost"}), leaves=True)
STOPPED: Final = Kind(
    name="rank stopped (SIGSTOP)", inject=_signalled(COMMAND, signal.SIGSTOP), diagnoses=frozenset({"Hang"})
)
STOPPED_OUTSIDE_CALLS: Final = Kind(
    name="rank stops between two steps", inject=_ordered("stop"), diagnoses=frozenset({"Hang"})
)
ASLEEP: Final = Kind(name="rank sleeps", inject=_ordered("sleep"), diagnoses=frozenset({"Hang"}))
HANGS: Final = (STOPPED, ASLEEP)
OUT_OF_MEMORY: Final = Kind(
    name="container out of memory", inject=_ordered("memory"), diagnoses=frozenset({"OutOfMemory"})
)
EVICTED: Final = Kind(
    name="pod evicted: local storage", inject=_ordered("disk"), diagnoses=frozenset({"PodLost/LocalStorageLimit"})
)
BAD_GPU: Final = Kind(
    name="ECC error of a GPU",
    inject=_ordered("raise", ECC, until="printed"),
    diagnoses=frozenset({"ProcessFailed/EccError"}),
    leaves=True,
)
BAD_GPU_AND_OPERATOR: Final = Kind(
    name="ECC error of a GPU, the operator killed in the replacement",
    inject=_operator_killed_as_it_acts(BAD_GPU.inject),
    diagnoses=BAD_GPU.diagnoses,
    leaves=True,
)
STORAGE_AWAY: Final = Kind(
    name="storage away",
    inject=_storage_away,
    diagnoses=frozenset({"ProcessFailed/StorageUnavailable"}),
    hits_rank=False,
)
LINK_CUT: Final = Kind(name="link cut for 2–5 s", inject=_link_cut, restarts=False)
# Nobody waits for minutes until the operator ends the hang.
CUT_SHORT: Final = tuple(
    Kind(
        name=f"{hang.name}, killed when shown",
        inject=_killed_when_shown(hang.inject),
        diagnoses=frozenset({"ProcessKilled"}),
    )
    for hang in HANGS
)

KINDS: Final = (
    KILLED,
    RAISED,
    NODE_KILLED,
    STOPPED,
    ASLEEP,
    Kind(
        name="rank crashed (SIGSEGV)",
        inject=_signalled(COMMAND, signal.SIGSEGV),
        diagnoses=frozenset({"ProcessCrashed", "ProcessCrashed/ProcessCrashed"}),
    ),
    Kind(name="rank ends early, exit code 0", inject=_ordered("exit", "0"), diagnoses=frozenset({"ProcessFailed"})),
    Kind(name="rank ends with exit code 3", inject=_ordered("exit", "3"), diagnoses=frozenset({"ProcessFailed"})),
    OUT_OF_MEMORY,
    BAD_GPU,
    STORAGE_AWAY,
    Kind(name="agent killed", inject=_signalled(AGENT, signal.SIGKILL), restarts=False),
    Kind(name="launcher killed", inject=_signalled(LAUNCHER, signal.SIGKILL), diagnoses=frozenset({"PodLost"})),
    Kind(name="agent and rank killed", inject=_agent_and_rank, diagnoses=frozenset({"ProcessKilled"})),
    Kind(name="pod deleted", inject=_pod_deleted, diagnoses=frozenset({"PodLost"})),
    LINK_CUT,
    Kind(name="gateway killed", inject=_gateway_killed, restarts=False),
    Kind(name="etcd killed", inject=_system_process_killed("etcd", ETCD), restarts=False),
    Kind(name="operator killed", inject=_system_process_killed("operator", OPERATOR), restarts=False),
)
# What may come together: each of the first with each of the others. A second node or a second cut link would need a
# spare more than the local cluster has.
FIRST: Final = tuple(kind for kind in KINDS if kind.restarts and not kind.leaves and kind not in HANGS)
SECOND: Final = (KILLED, RAISED, *(kind for kind in KINDS if not kind.restarts and "link" not in kind.name))


class Planned(msgspec.Struct, frozen=True):
    """One or two faults at once, and the rank that each one hits."""

    kinds: tuple[Kind, ...]
    ranks: tuple[int, ...]

    @property
    def name(self) -> str:
        return " + ".join(kind.name for kind in self.kinds)


PAIRS: Final = 0.15  # share of the campaign


def campaign(draw: Random, count: int, ranks: int, *, hangs: bool) -> list[Planned]:
    """Draw faults: each kind equally often, as nearly as the count allows; some of them two at once.

    ``hangs``: those too that take minutes.
    """
    chosen = [kind for kind in KINDS if hangs or kind not in HANGS]
    bag: list[Kind] = []
    planned = []
    for _ in range(count):
        if draw.random() < PAIRS:
            first = draw.choice(FIRST)
            kinds = (first, draw.choice([kind for kind in SECOND if kind is not first]))
        else:
            bag = bag or draw.sample(chosen, len(chosen))
            kinds = (bag.pop(),)
        planned.append(Planned(kinds, tuple(draw.sample(range(ranks), len(kinds)))))
    return planned


def measured(repeats: int, ranks: int) -> list[Planned]:
    """Return the faults whose detection has a limit, in turns; the hangs are cut short."""
    kinds = (KILLED, RAISED, NODE_KILLED, *CUT_SHORT)
    return [Planned((kind,), ((number + 1) % ranks,)) for number in range(repeats) for kind in kinds]
