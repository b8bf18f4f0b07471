"""Check all machines before the ranks start: find those whose results are far below those of equal machines.

TRANSOM §IV-A checks nodes before each start against fixed scores. Here every pod measures at the same time, with the
image's own libraries, and a rate counts as a ratio to the median of the others that have the same devices. So no table
of scores has to be kept, and a cause that slows all of them alike blames no machine. A machine that is slow is measured
again before anything follows from it: once more for products, twice for copies, which other work on the machine
scatters more. Wrong results need no second measurement. Then the links between the machines are measured
(``link_test``), in the same round.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.recovery.model.membership import Membership
from falcon_core.recovery.preflight.link_test import (
    BANDWIDTH,
    LATENCY,
    LINK_ROUNDS,
    LINKS_SECONDS,
    LinksFound,
    SlowMachine,
    are_wanted,
    counted_on,
    is_coming,
    judge_links,
    participants,
)
from falcon_core.stats.medians import median_without
from falcon_core.wire.measurement.check import CheckReport
from falcon_core.wire.measurement.check_links import LinksReport

PRODUCTS: Final = frozenset(("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "sha256"))  # other kinds move data
PRODUCT_ROUNDS: Final = 2  # in a row
COPY_ROUNDS: Final = 3
SLOW_FACTOR: Final = 1.5  # the others' median to the machine's own rate: training shows less than that by itself
ANSWER_SECONDS: Final = 75.0  # beyond it, a pod has no result: its launcher gives a check a minute, and its load
MOST_ROUNDS: Final = 6  # of one start: newcomers are checked as well, and may be slow, too
LOAD_MS: Final = 2000
MOST_NAMED: Final = 32  # a TrainingRun has bounds, and a pool has fewer spares
MOST_EXAMPLES: Final = 5
replace = msgspec.structs.replace


class Found(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A machine that is not as good as its peers. ``kind`` empty: it computes wrongly, and ``text`` has the details."""

    replica: int
    pod_name: str
    node: str
    kind: str = ""
    ratio: float = 0.0  # the peers' median ÷ its own rate
    text: str = ""  # likewise the figures where its links are slow
    rounds: int = 1  # in a row that found it slow
    product_rounds: int = 0  # the newest of them in a row, in which its products were slow
    link_rounds: int = 0  # likewise, its links alone

    @property
    def is_certain(self) -> bool:
        """Check whether something may follow from it. Wrong results need no second look."""
        in_a_row = self.product_rounds >= PRODUCT_ROUNDS or self.link_rounds >= LINK_ROUNDS
        return not self.kind or in_a_row or self.rounds >= COPY_ROUNDS

    @property
    def is_link(self) -> bool:
        """Check whether it is the machine's links that are slow."""
        return self.kind in (BANDWIDTH, LATENCY)


class Preflight(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The checks of a job's machines, as far as they have come. Times are unix seconds."""

    number: int = 0  # of the newest round; 0: none yet
    asked_at: float = 0.0  # 0: no round is open
    rounds: int = 0  # of the present start
    checked: int = 0  # machines in the newest complete round
    pods_made: int = 0  # of the membership, at that round: pods that were made later are new
    generation: int = 0  # that waited for the newest complete round
    found: list[Found] = []  # by the newest complete round: MOST_NAMED, the worst first
    missing: int = 0  # pods that gave no result
    why_missing: list[str] = []  # MOST_EXAMPLES of them, with the reason
    compared: int = 0  # machines that had an equal one to be compared with
    skipped: list[str] = []  # MOST_EXAMPLES kinds of work that were not done, with the reason
    links_at: float = 0.0  # when the links were ordered; 0: they are not measured now
    token: str = ""  # of the order
    links: LinksFound = LinksFound()  # by the newest complete round


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that takes part in a round. ``report`` None: it has not answered."""

    replica: int
    pod_name: str
    node: str
    report: CheckReport | None = None

    @property
    def links(self) -> LinksReport | None:
        return self.report.links if self.report is not None else None


def is_due(state: Preflight, membership: Membership, *, suspected: bool) -> bool:
    """Check whether the machines are to be measured before this generation starts.

    They are where a pod was made since the newest complete round, and once where the failure that ended the generation
    before points at a machine (``suspected``).
    """
    if state.rounds >= MOST_ROUNDS:
        return False
    return state.pods_made < membership.pods_made or (suspected and state.generation < membership.generation)


def begin_round(state: Preflight, now: float) -> Preflight:
    """Ask every machine for a measurement."""
    return replace(state, number=state.number + 1, asked_at=now, rounds=state.rounds + 1)


def awaited(state: Preflight, machines: Sequence[Machine], now: float) -> list[Machine]:
    """Return the machines whose answer is still waited for."""
    # Compare absolute differences: an earlier leader with another clock may have given the order.
    if state.links_at:
        late = abs(now - state.links_at) > LINKS_SECONDS
        ring = {machine.replica for machine in participants(machines)}
        return [each for each in machines if each.replica in ring and not late and not _linked(each)]
    if abs(now - state.asked_at) > ANSWER_SECONDS:
        return []
    return [machine for machine in machines if machine.report is None or is_coming(machine)]


def links_are_due(state: Preflight, machines: Sequence[Machine]) -> bool:
    """Check whether the machines have been measured and the links between them have not."""
    return not state.links_at and are_wanted(machines)


def order_links(state: Preflight, now: float, token: str) -> Preflight:
    """Order the machines of the open round to measure the links between them. ``token``: cannot be guessed."""
    return replace(state, links_at=now, token=token)


def without_round(state: Preflight) -> Preflight:
    """Return the state without an open round."""
    return replace(state, asked_at=0.0, links_at=0.0, token="")


def end_round(state: Preflight, machines: Sequence[Machine], membership: Membership, now: float) -> Preflight:
    """Judge a round.

    Where a machine or a link is slow and it is not certain yet, the next round begins at once. Otherwise the result
    stands in ``found`` and ``links``.
    """
    before = {each.node: each for each in state.found}
    computing = judge(machines)
    machines_by_links, links = judge_links(machines, [each.replica for each in computing])
    by_replica = {machine.replica: machine for machine in machines}
    bad = [*computing, *(_of_links(each, by_replica[each.replica]) for each in machines_by_links)]
    # A machine is left only after two bad rounds in a row, so each round counts on from the round before it.
    found = [counted_after(before.get(each.node), each) for each in bad[:MOST_NAMED]]
    links = counted_on(state.links, links)
    missing = [machine for machine in machines if not _answered(machine)]
    ended = replace(
        without_round(state),
        checked=len(machines),
        pods_made=membership.pods_made,
        generation=membership.generation,
        found=found,
        missing=len(missing),
        why_missing=[f"{machine.pod_name}: {_why_missing(machine)}" for machine in missing[:MOST_EXAMPLES]],
        compared=sum(len(group) for group in _groups(machines) if len(group) > 1),
        skipped=_skipped(machines),
        links=links,
    )
    certain = all(each.is_certain for each in found) and all(each.is_certain for each in links.slow)
    # One bad round may be chance: measure again before anything follows from it.
    if not certain and state.rounds < MOST_ROUNDS:
        return begin_round(ended, now)
    return ended


def _linked(machine: Machine) -> bool:
    return machine.links is not None and machine.links.over


def _of_links(slow: SlowMachine, machine: Machine) -> Found:
    return Found(
        replica=slow.replica,
        pod_name=machine.pod_name,
        node=machine.node,
        kind=slow.kind,
        ratio=slow.ratio,
        text=slow.text,
        link_rounds=1,
    )


def _skipped(machines: Sequence[Machine]) -> list[str]:
    """Return the kinds of work that were not done, each once for each reason."""
    reports = [machine.report for machine in machines if machine.report is not None]
    reasons = {(kind, why): None for report in reports for kind, why in report.skipped.items()}
    return [f"{kind}: {why}" for kind, why in list(reasons)[:MOST_EXAMPLES]]


def counted_after(before: Found | None, now: Found) -> Found:
    """Return the result of a round for a machine, counted on from the round before."""
    if before is None or not before.kind:
        return now
    return replace(
        now,
        rounds=before.rounds + 1,
        product_rounds=before.product_rounds + 1 if now.product_rounds else 0,
        link_rounds=before.link_rounds + 1 if now.link_rounds else 0,
    )


def sick(state: Preflight) -> list[Found]:
    """Return the machines that a complete check has found bad, the worst first: wrong results before slow ones."""
    return [each for each in state.found if each.is_certain and not state.asked_at]


def judge(machines: Sequence[Machine], factor: float = SLOW_FACTOR) -> list[Found]:
    """Return the machines whose results are wrong, then those too far below equal machines, the slowest first.

    ``factor``: the median rate of the others ÷ its own, beyond which a machine is too slow.
    """
    found = [
        Found(
            replica=machine.replica,
            pod_name=machine.pod_name,
            node=machine.node,
            text=machine.report.problems[0],
        )
        for machine in machines
        if machine.report is not None and machine.report.problems
    ]
    # Wrong results are graver than slow ones, and a machine is named once.
    wrong = {each.replica for each in found}
    slow = [each for group in _groups(machines) for each in _slow(group, factor) if each.replica not in wrong]
    return [*found, *sorted(slow, key=lambda each: -each.ratio)]


def _groups(machines: Sequence[Machine]) -> list[list[Machine]]:
    """Return the machines that have answered, by what can be compared: the same devices and libraries."""
    groups: dict[tuple[str, str], list[Machine]] = {}
    for machine in machines:
        if machine.report is not None and not machine.report.why:
            groups.setdefault((machine.report.backend, machine.report.devices), []).append(machine)
    return list(groups.values())


def _slow(group: Sequence[Machine], factor: float) -> list[Found]:
    """Return the machines of a group that are too far behind the median of the others in some kind of work.

    Slow products are named before slow copies.
    """
    rates: dict[str, list[int]] = {}
    for machine in group:
        for kind, micros in _micros(machine).items():
            rates.setdefault(kind, []).append(micros)
    for each in rates.values():
        each.sort()
    slow = []
    for machine in group:
        ratios = {
            kind: median_without(rates[kind], [own]) / max(1, own)
            for kind, own in _micros(machine).items()
            # A kind that a single machine has measured has no median to be compared with.
            if len(rates[kind]) > 1
        }
        # Training is made of products, so a slow product says more than a slow copy.
        products = any(ratio > factor for kind, ratio in ratios.items() if kind in PRODUCTS)
        kind = max(ratios, key=lambda each: (products and each in PRODUCTS, ratios[each]), default="")
        if kind and ratios[kind] > factor:
            slow.append(
                Found(
                    replica=machine.replica,
                    pod_name=machine.pod_name,
                    node=machine.node,
                    kind=kind,
                    ratio=round(min(ratios[kind], 1e6), 2),
                    product_rounds=int(products),
                )
            )
    return slow


def _micros(machine: Machine) -> dict[str, int]:
    return machine.report.micros if machine.report is not None else {}


def _answered(machine: Machine) -> bool:
    return machine.report is not None and not machine.report.why


def _why_missing(machine: Machine) -> str:
    return machine.report.why if machine.report is not None else "no answer"
