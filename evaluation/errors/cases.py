"""Play failures of several ranks with clocks that differ and reports in any order, and compare who is named.

A case gives what each rank printed and when it failed by true time. Each trial draws an error of ± 1 s for each node's
clock, and the order in which the operator hears the ends: the first rank before or after the others, all at once, or
at random. The operator's own ladder decides after each report, as it would on a cluster.
"""

from __future__ import annotations

import random
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final, Literal

import msgspec

from evaluation.errors.shares import Share, shares
from evaluation.harness import Table
from falcon_core.errors.judge import shipped_judge
from falcon_core.recovery import GiveUp, Look, Observation, Policy, RecoveryState, Replace
from falcon_core.recovery.failstop import restart_ladder
from falcon_core.recovery.model.observation import LauncherSeen, MemberSeen, RankSeen, Spares
from falcon_core.wire.reporting.messages import RankSignals

Order = Literal["FirstHeardFirst", "FirstHeardLast", "AtOnce", "Random"]
ORDERS: Final[tuple[Order, ...]] = ("FirstHeardFirst", "FirstHeardLast", "AtOnce", "Random")
TRIALS: Final = 10  # drawings of the clocks for each order
CLOCK_SECONDS: Final = 1.0  # largest error of a node's clock
REPORT_SECONDS: Final = 0.2  # between two reports that the operator hears
ITERATIONS: Final = 100  # done before the failure, unless the case fails at its start
NOW: Final = 1_000_000.0
LEAVE: Final = "leave the node"
LEAST_RIGHT: Final = 0.95
LEAST_PRECISION: Final = 0.98
LEAST_RECALL: Final = 0.98
HELD_OUT: Final = Path(__file__).parent / "held_out" / "cases.jsonl"
PART_ONE: Final = Path(__file__).parents[2] / "tests" / "data" / "errors" / "cases.jsonl"
replace = msgspec.structs.replace


class End(msgspec.Struct, frozen=True):
    """How a process ended."""

    exit_code: int | None = None
    signal: int | None = None
    oom_killed: bool = False
    lives: bool = False


class CaseRank(msgspec.Struct, frozen=True):
    """One rank of a case. ``failed_at``: seconds of true time."""

    rank: int
    node: int
    end: End
    output: str
    failed_at: float


class FirstCause(msgspec.Struct, frozen=True, rename={"error_class": "class"}):
    """The label: who failed first, and of what class. ``rank`` None: no single rank is at fault."""

    rank: int | None
    node: int | None
    error_class: str
    also: list[str] = []
    also_ranks: list[int] = []


class Case(msgspec.Struct, frozen=True):
    """A failure of several ranks."""

    id: str
    nodes: int
    ranks: list[CaseRank]
    cause: FirstCause
    step: str
    source: str = ""
    why: str = ""
    iterations: int = ITERATIONS


class Outcome(msgspec.Struct, frozen=True):
    """What the operator decided in one trial."""

    case: str
    order: Order
    rank: int | None
    step: str
    right_rank: bool
    right_step: bool


def table() -> Table:
    """Play the held-out cases and make the table of the shares, by order of reports."""
    cases = read_cases(HELD_OUT) if HELD_OUT.exists() else []
    if not cases:
        return shares([Share(f"cases ({HELD_OUT} is missing or empty)", 0, 1, 1.0)])
    outcomes = played(cases)
    found = [_right_ranks(order, [each for each in outcomes if each.order == order]) for order in ORDERS]
    found += _evictions(outcomes, {case.id for case in cases if case.step == LEAVE})
    for case in sorted({outcome.case for outcome in outcomes if not outcome.right_rank}):
        print(f"    {case}: another rank is named in some drawing")
    return shares(found, f"{len(cases)} cases, each with {TRIALS} drawings of the clocks in each order.")


def _right_ranks(order: Order, outcomes: Sequence[Outcome]) -> Share:
    return Share(f"right rank, {order}", sum(each.right_rank for each in outcomes), len(outcomes), LEAST_RIGHT)


def _evictions(outcomes: Sequence[Outcome], bad: Collection[str]) -> list[Share]:
    """Count the evictions that were right, and the bad nodes that were left. ``bad``: cases of a bad node."""
    left = [outcome for outcome in outcomes if outcome.step == LEAVE]
    sound = [outcome for outcome in left if outcome.case in bad and outcome.right_rank]
    wanted = [outcome for outcome in outcomes if outcome.case in bad]
    kept = [outcome for outcome in wanted if outcome.step != LEAVE]
    for case in sorted({outcome.case for outcome in kept}):
        print(f"    {case}: the bad node is kept in some drawing")
    return [
        Share("evictions that are right", len(sound), len(left), LEAST_PRECISION),
        Share("bad nodes left", len(wanted) - len(kept), len(wanted), LEAST_RECALL),
    ]


def read_cases(path: Path) -> list[Case]:
    """Read cases, one JSON object a line."""
    return [msgspec.json.decode(line, type=Case) for line in path.read_bytes().splitlines() if line.strip()]


def played(cases: Iterable[Case], seed: int = 1, trials: int = TRIALS) -> list[Outcome]:
    """Play each case in each order, with other clocks in each trial."""
    draw = random.Random(seed)
    return [_played(case, order, draw) for case in cases for order in ORDERS for _ in range(trials)]


def _played(case: Case, order: Order, draw: random.Random) -> Outcome:
    clocks = [draw.uniform(-CLOCK_SECONDS, CLOCK_SECONDS) for _ in range(case.nodes)]
    ends = [rank for rank in case.ranks if not rank.end.lives]
    policy = Policy(job="case", strategies=[], world_size=len(case.ranks))
    state, commands, heard = RecoveryState(), [], set[int]()
    now, stopping = NOW + max((rank.failed_at for rank in ends), default=0.0) + 1.0, False
    named: int | None = None
    for group in _reports(case, ends, order, draw):
        heard |= group
        now += REPORT_SECONDS
        taken = restart_ladder.step(state, Look(_seen(case, heard, clocks, now, stopping=stopping), policy))
        state = taken.state
        if state.stop is not None:
            named = state.stop.fault.rank
        commands += taken.commands
        stopping = stopping or bool(taken.commands)
    # What is held back or waited for is decided when its time has come.
    for _ in range(3):
        now += restart_ladder.OTHERS_SECONDS + 1.0
        taken = restart_ladder.step(state, Look(_seen(case, heard, clocks, now, stopping=stopping), policy))
        state, commands = taken.state, [*commands, *taken.commands]
        named = state.stop.fault.rank if state.stop is not None else named
        named = taken.events[0].incident.fault.rank if taken.events else named
        if taken.commands:
            stopping = True
    step = _step(commands)
    right = {case.cause.rank, *case.cause.also_ranks} if case.cause.rank is not None else {None}
    return Outcome(case.id, order, named, step, named in right, step == case.step)


def _reports(case: Case, ends: Sequence[CaseRank], order: Order, draw: random.Random) -> list[set[int]]:
    """Return the groups of ranks whose ends the operator hears, one report after the other."""
    numbers = [rank.rank for rank in ends]
    if order == "AtOnce":
        return [set(numbers)]
    draw.shuffle(numbers)
    if case.cause.rank in numbers and order != "Random":
        numbers.remove(case.cause.rank)
        numbers.insert(0 if order == "FirstHeardFirst" else len(numbers), case.cause.rank)
    return [{number} for number in numbers]


def _step(commands: Sequence[object]) -> str:
    if any(isinstance(command, GiveUp) for command in commands):
        return "fail the job at once"
    return LEAVE if any(isinstance(command, Replace) for command in commands) else "restart the processes"


def _seen(case: Case, heard: set[int], clocks: Sequence[float], now: float, *, stopping: bool) -> Observation:
    nodes = sorted({rank.node for rank in case.ranks})
    place = {node: number for number, node in enumerate(nodes)}
    return Observation(
        now=now,
        generation=2 if stopping else 1,
        running=not stopping,
        running_seconds=now - NOW + 1000.0,
        members=[
            MemberSeen(
                replica=place[node],
                pod_name=f"trainer-{node}",
                pod_uid=f"uid-{place[node]}",
                address=_address(case, node),
                node=f"node-{node}",
                pod="Present",
                alive=True,
                launcher=LauncherSeen(acknowledged=True),
            )
            for node in nodes
        ],
        ranks=[
            _rank(rank, place[rank.node], clocks[place[rank.node]], case.iterations, heard=rank.rank in heard)
            for rank in sorted(case.ranks, key=lambda each: each.rank)
        ],
        spares=Spares(pool="spares", available=True),
    )


def _address(case: Case, node: int) -> str:
    """Return the address of a node's pod: the third number of the addresses in a case is the node."""
    found = re.search(rf"\b10\.84\.{node}\.\d+\b", " ".join(rank.output for rank in case.ranks))
    return found.group() if found is not None else ""


def _rank(rank: CaseRank, replica: int, clock: float, iterations: int, *, heard: bool) -> RankSeen:
    sent = RankSignals(rank=rank.rank, tracking="Tracking" if iterations else "NoRing", iterations=iterations)
    running = RankSeen(rank=rank.rank, replica=replica, process="Running", fresh=True, sent=sent)
    if not heard:
        return running
    return replace(
        running,
        process="Ended",
        exit_code=rank.end.exit_code,
        signal=rank.end.signal,
        oom_killed=rank.end.oom_killed,
        last_words=_last_words(rank.output) if rank.end.exit_code != 0 else "",
        ended_at=NOW + rank.failed_at + clock,
    )


@cache
def _last_words(output: str) -> str:
    """Return the reason of an end. An output is judged once, whatever the orders and clocks in which it is heard."""
    return shipped_judge().last_words(output).text
