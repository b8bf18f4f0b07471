"""Judge the links between the machines of a job before a start: which are slow, and which machine causes that.

The pods stand in a ring, as a collective has them, and each link is measured by both of its ends
(``wire.measurement.check_links``; FALCON §4.3: all pairs of a pass at once). A link counts with the worse of the
results of its two ends. So one pod alone can make only its own links look worse, and no link look better.

- *A machine* is slow where even the best of its links is far below the others' median, without its own.
- *A link* is slow alone where it is far below the median of the others, and neither of its ends is blamed.

A transfer that kept a CPU of one end busy, or in which the sender's kernel often had nothing to send, measures a CPU:
the link has at least this rate, and is not called slow. A cause that slows all links alike blames no machine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol

import msgspec

from falcon_core.stats.medians import median_without
from falcon_core.topology.passes import Pass, ring_passes
from falcon_core.wire.measurement.check_links import NO_PORT, PORT_COMES, LinkReport, LinksReport

LEAST_MACHINES: Final = 3  # of two, the only link has nothing to be compared with
LINKS_SECONDS: Final = 20.0  # from the order to the last result: three turns, and the bus
TRANSFER_MS: Final = 200  # in each direction
LINK_FACTOR: Final = 3.0  # the others' median to its own: half the bandwidth is common between good machines
KNOWN_FACTOR: Final = 2.0  # likewise, where transfers are known to have become slow: one of the links has to be why
LEAST_RTT_US: Final = 2_000  # that a slow link has more than the others: another zone's has less
HELD_PERMILLE: Final = 800  # with a slow link 870 and more; with busy CPUs mostly 200 to 700
BUSY_PERMILLE: Final = 800  # more of the transfer, and it measured a CPU, whatever the kernel reports of the network
BUSY_ALONE_PERMILLE: Final = 500  # likewise, where the kernel reports nothing
LINK_ROUNDS: Final = 2  # in a row
MOST_PAIRS: Final = 8  # of the slow ones are named
MOST_EXAMPLES: Final = 5
BANDWIDTH: Final = "bandwidth"
LATENCY: Final = "latency"


class Linked(Protocol):
    """A machine, as far as it matters here."""

    @property
    def replica(self) -> int: ...

    @property
    def pod_name(self) -> str: ...

    @property
    def node(self) -> str: ...

    @property
    def links(self) -> LinksReport | None: ...


class Pair(msgspec.Struct, frozen=True):
    """A link that both ends have measured: the worse of their results."""

    ends: tuple[int, int]  # replicas
    bits: int  # a second, in the slower direction of those that kept no CPU busy
    rtt_us: int
    busy: bool  # both did: ``bits`` is a CPU's rate


class SlowMachine(msgspec.Struct, frozen=True):
    """A machine whose links are all slow."""

    replica: int
    kind: str
    ratio: float  # the others' median ÷ its best link
    text: str  # the figures


class SlowPair(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A link that is slow alone: which of its two machines is at fault is not known."""

    nodes: list[str]
    pod_names: list[str]
    kind: str = BANDWIDTH
    ratio: float = 0.0  # the others' median ÷ its own
    text: str = ""  # the figures
    rounds: int = 1  # in a row

    @property
    def is_certain(self) -> bool:
        return self.rounds >= LINK_ROUNDS


class LinksFound(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The result of a round: the links, as far as they are known."""

    wanted: int = 0  # links of the ring; 0: there was nothing to compare
    measured: int = 0
    slow: list[SlowPair] = []  # MOST_PAIRS, the slowest first
    why_missing: list[str] = []  # MOST_EXAMPLES


class _Measure(msgspec.Struct, frozen=True):
    """One thing that is measured of links. ``good``: the higher the better. ``enough``: what never counts as slow."""

    kind: str
    good: Callable[[Pair], float]
    enough: Callable[[Pair, float], bool]
    words: Callable[[float], str]


def are_wanted(machines: Sequence[Linked]) -> bool:
    """Check whether enough machines wait for each other to compare their links."""
    return len(participants(machines)) >= LEAST_MACHINES


def participants(machines: Sequence[Linked]) -> list[Linked]:
    """Return the machines that are to measure, in the order of the ring."""
    return [machine for machine in machines if machine.links is not None and machine.links.port > NO_PORT]


def is_coming(machine: Linked) -> bool:
    """Check whether a machine will take part, and cannot yet."""
    return machine.links is not None and machine.links.port == PORT_COMES


def judge_links(
    machines: Sequence[Linked], blamed: Collection[int], factor: float = LINK_FACTOR
) -> tuple[list[SlowMachine], LinksFound]:
    """Return the machines whose links are all slow, the slowest first, and what is known of the links.

    ``blamed``: the replicas that compute slowly or wrongly. Their links say nothing. ``factor``: the others' median to
    a link that is slow alone.
    """
    ring = participants(machines)
    if len(machines) < LEAST_MACHINES:
        return [], LinksFound()
    by_replica = {machine.replica: machine for machine in ring}
    absent = [f"{each.pod_name}: {_why_absent(each)}" for each in machines if each.replica not in by_replica]
    if len(ring) < LEAST_MACHINES:
        return [], LinksFound(wanted=len(machines), why_missing=absent[:MOST_EXAMPLES])
    pairs, missing = _pairs(by_replica)
    # A machine that computes slowly slows its links as well.
    sound = [pair for pair in pairs if not set(pair.ends) & set(blamed)]
    found = {each.replica: each for measure in _MEASURES for each in _machines(sound, measure)}
    # Links of a machine whose links are all slow are explained by the machine.
    alone = [pair for pair in sound if not set(pair.ends) & found.keys()]
    slow = [each for measure in _MEASURES for each in _alone(alone, measure, by_replica, factor)]
    distinct = {tuple(each.nodes): each for each in sorted(slow, key=lambda each: each.ratio)}
    return sorted(found.values(), key=lambda each: -each.ratio), LinksFound(
        wanted=len(pairs) + len(missing) + len(absent),
        measured=len(pairs),
        slow=sorted(distinct.values(), key=lambda each: -each.ratio)[:MOST_PAIRS],
        why_missing=[*absent, *missing][:MOST_EXAMPLES],
    )


def counted_on(before: LinksFound, now: LinksFound) -> LinksFound:
    """Return a round's result, with how many rounds in a row have found each link slow."""
    known = {tuple(each.nodes): each.rounds for each in before.slow}
    slow = [msgspec.structs.replace(each, rounds=known.get(tuple(each.nodes), 0) + 1) for each in now.slow]
    return msgspec.structs.replace(now, slow=slow)


def turns(replicas: Sequence[int]) -> list[Pass]:
    """Return the pairs of each turn; the first of a pair dials. Raises ValueError where a replica appears twice."""
    return ring_passes(replicas)


def _pairs(ring: dict[int, Linked]) -> tuple[list[Pair], list[str]]:
    """Return the links that both ends have measured, and why not of each other link."""
    pairs, missing = [], []
    for ends in (pair for links in turns(list(ring)) for pair in links):
        first, second = (_report(ring[own], other) for own, other in (ends, ends[::-1]))
        why = next((each.why or "no result" for each in (first, second) if min(each.bits, each.rtt_us) < 0), "")
        if why:
            missing.append(f"{ring[ends[0]].pod_name} and {ring[ends[1]].pod_name}: {why}")
            continue
        there, back = _transfer(first, second), _transfer(second, first)
        # A direction that was not busy says more; how much more is bounded, since an end could claim that it was busy.
        (busy, bits), (_, other) = sorted((there, back))
        bits = min(bits, round(LINK_FACTOR * other))
        pairs.append(Pair(ends, bits, max(first.rtt_us, second.rtt_us), busy))
    return pairs, missing


def _transfer(sender: LinkReport, receiver: LinkReport) -> tuple[bool, int]:
    """Return whether a CPU was busy during one direction's transfer, and its rate."""
    busy = max(sender.sending_permille, receiver.receiving_permille)
    if sender.held_permille < 0:
        return busy > BUSY_ALONE_PERMILLE, receiver.bits
    return busy > BUSY_PERMILLE or sender.held_permille < HELD_PERMILLE, receiver.bits


def _report(machine: Linked, peer: int) -> LinkReport:
    links = machine.links
    assert links is not None  # it takes part
    unknown = LinkReport(peer, why=links.why or ("no result" if links.over else "no answer in time"))
    return next((each for each in links.links if each.peer == peer), unknown)


def _why_absent(machine: Linked) -> str:
    if machine.links is None:
        return "its agent is of a version that measures no links, or has not answered"
    return machine.links.why or "its executor did not begin in time"


def _machines(pairs: Sequence[Pair], measure: _Measure) -> list[SlowMachine]:
    """Return the machines of which even the best link is far below the others' median; each has two links at least."""
    found, ordered = [], sorted(map(measure.good, pairs))
    links: dict[int, list[Pair]] = {}
    for pair in pairs:
        for end in pair.ends:
            links.setdefault(end, []).append(pair)
    for replica, own in links.items():
        # With one link, or with all of them, machine and link cannot be distinguished.
        if len(own) < 2 or len(own) == len(pairs):
            continue
        best, usual = max(own, key=measure.good), median_without(ordered, [measure.good(pair) for pair in own])
        if all(_is_slow(pair, usual, measure, LINK_FACTOR) for pair in own):
            text = f"{measure.words(measure.good(best))} on the best of its {len(own)} links, {measure.words(usual)} on"
            ratio = _ratio(usual, measure.good(best))
            found.append(SlowMachine(replica, measure.kind, ratio, f"{text} the others"))
    return found


def _alone(pairs: Sequence[Pair], measure: _Measure, ring: dict[int, Linked], factor: float) -> list[SlowPair]:
    found, ordered = [], sorted(map(measure.good, pairs))
    # A single link has nothing that it could be slower than.
    for pair in pairs if len(pairs) > 1 else ():
        usual = median_without(ordered, [measure.good(pair)])
        if not _is_slow(pair, usual, measure, factor):
            continue
        ends = [ring[end] for end in pair.ends]
        found.append(
            SlowPair(
                nodes=[end.node for end in ends],
                pod_names=[end.pod_name for end in ends],
                kind=measure.kind,
                ratio=_ratio(usual, measure.good(pair)),
                text=f"{measure.words(measure.good(pair))}, the other links {measure.words(usual)}",
            )
        )
    return found


def _is_slow(pair: Pair, usual: float, measure: _Measure, factor: float) -> bool:
    return usual > factor * measure.good(pair) and not measure.enough(pair, usual)


def _ratio(usual: float, own: float) -> float:
    return round(min(usual / max(own, 1e-9), 1e6), 2)


def _rate_words(bits: float) -> str:
    for unit, name in ((1e9, "Gbit/s"), (1e6, "Mbit/s")):
        if bits >= unit:
            return f"{bits / unit:.3g} {name}"
    return f"{bits / 1e3:.3g} kbit/s"


def _trip_words(trips: float) -> str:
    return f"{1e3 / max(trips, 1e-9):.3g} ms there and back"


def _trips(pair: Pair) -> float:
    """Return the round trips a second."""
    return 1e6 / max(1, pair.rtt_us)


_MEASURES: Final = (  # where both are slow, the bandwidth is named
    _Measure(LATENCY, _trips, lambda pair, usual: pair.rtt_us < 1e6 / usual + LEAST_RTT_US, _trip_words),
    _Measure(BANDWIDTH, lambda pair: float(pair.bits), lambda pair, _: pair.busy, _rate_words),
)
