"""Find the culprit of a slowdown: compare what all ranks report of themselves.

Every rank of a synchronous job has the same iteration time, so the time that a fault costs shows at each rank in one of
three places: as *computation* of its own, as *transfer* that lasts longer than it did, or as *wait* for another rank.
Waits point away from the rank that waits. The culprit is the sink: others wait for it, and it waits for none
(docs/architecture.md §5). The rules, in the order in which they are applied (``falcon_core.judgement`` has the
thresholds):

- **Computation.** ``own(r)`` = compute of r over its own healthy level (track), less what all its peers have gained, or
  over its peers' median where nothing healthy was seen (a job slow from its first iteration, the median rule). A rank
  whose own excess makes up a good part of the loss is a culprit; so several faults at once are found together, and a
  neighbour that only waits is not. Ranks of a node that are all slow are a single finding, the node; ranks of a
  communicator that are all slow alike are a single finding, the group: their waits for each other were not seen (a
  captured graph, for instance), and a guess at one of them would be no better than that.
- **Communication.** The last to arrive does not wait, so the smallest excess among all members of a communicator is
  what its transfer gained. Slow communicators that have a single node in common are that node's link. A rank that
  computes slowly also moves data slowly (a process that is stopped half of the time is so inside its collectives as
  well): the communicators that it is in are not blamed besides, unless they gained much more than it did.
- **No computation and no transfer grew, and yet ranks wait**: the sink of the wait-for graph. If its compute time is
  known to be unchanged, the link between it and the waiting ranks is suspected, and a measurement has to decide.
- **Imbalance.** Ranks that do the same work are equal, but one kind of work takes longer than another (a heavy last
  pipeline stage): no node is replaced for it.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from falcon_core.judgement import JUDGEMENT
from falcon_core.signals.changepoint.median_rule import Series, outliers
from falcon_core.stats.order import median_of

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's excess inside one communicator, ns an iteration, over its own healthy baseline of the same positions.

    Where all members' durations are known (profile mode) it is the excess over the fastest member instead, and the
    smallest of a communicator is 0 by construction.
    """

    comm: str  # job-wide name; "1>5" or the like for the sends of rank 1 to rank 5
    members: tuple[int, ...]
    excess_ns: float
    parts_ns: tuple[float, ...] = ()  # what it consists of, call by call or in groups of calls; alike at all members
    p2p: bool = False  # a send or a receive


class RankView(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's figures over the newest iterations, as medians, ns an iteration."""

    rank: int
    iteration_ns: float
    node: str = ""
    work: str = ""  # ranks with one label do the same work (a pipeline stage)
    compute_ns: float | None = None  # outside communication; None where ends of calls are not known
    healthy_compute_ns: float | None = None
    stall_share: float | None = None  # of its own excess: how much is in one gap alone (``attribution``)
    waits: tuple[Wait, ...] = ()
    unseen: tuple[tuple[int, ...], ...] = ()  # members of its communicators with invisible calls (captured graphs)


Kind = Literal["Computation", "Communication", "Suspected", "Imbalance"]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A finding. Several ``ranks``: a node, a communicator, or a group within which all look alike."""

    kind: Kind
    ranks: tuple[int, ...]
    excess_ns: float  # what it costs an iteration
    ratio: float  # compute or iteration time: now over healthy (or over the peers)
    node: str = ""  # where all ranks of one node are affected
    comm: str = ""  # where a link is slow
    stalled: bool = False  # the time is lost at one place of the cycle (late data), not in proportion to the work


def attribute_slowdown(
    views: Sequence[RankView], *, loss_ns: float | None = None, factor: float = JUDGEMENT.median_factor
) -> list[Verdict]:
    """Find the culprits, the costliest first; empty where no rank stands out. O(ranks × their communicators).

    ``loss_ns``: slow less healthy iteration time. None where no healthy time is known: then computation is judged by
    level alone, a rank against the ranks of its work, with the median rule's ``factor`` (FALCON §4).
    """
    if loss_ns is None:
        found = _by_level(views, factor)
        return found or _imbalance(views)
    floor = least_excess_ns(np.array([view.iteration_ns for view in views], dtype=np.float64), loss_ns)
    growth = _transfer_growth(views)
    own = _own_excess(views)
    found = _computation(views, own, floor)
    # A link between slow ranks is explained by them, if their own excess is large enough.
    slow = {rank for verdict in found for rank in verdict.ranks}
    found += [
        verdict
        for verdict in _links(views, growth, floor)
        if not any(
            own[rank] >= JUDGEMENT.explained_share * verdict.excess_ns for rank in slow.intersection(verdict.ranks)
        )
    ]
    # The last resort: nothing shows in the ranks or links, so follow who waits for whom.
    if not found and _common_gain_ns(views, loss_ns) < loss_ns / 2:
        found = _sinks(views, growth, floor)
    return sorted(found, key=lambda verdict: -verdict.excess_ns)


def least_excess_ns(iteration_ns: Floats, loss_ns: float) -> float:
    """Return the least excess of a culprit [ns an iteration]; ``iteration_ns`` by rank: [n]."""
    if not len(iteration_ns):
        return JUDGEMENT.culprit_share * loss_ns
    least_ns = JUDGEMENT.culprit_iteration_share * median_of(iteration_ns)
    return max(JUDGEMENT.culprit_share * loss_ns, least_ns)


# computation


def median_of_others(values: Floats) -> Floats:
    """Return for each value the median of all the others: [n] → [n]; of a single value, itself. O(n log n)."""
    count = len(values)
    if count < 2:
        return values
    order = np.argsort(values)
    ordered = values[order]
    low, high = (count - 2) // 2, (count - 1) // 2
    place = np.arange(count)
    others = np.empty(count)
    others[order] = (ordered[low + (place <= low)] + ordered[high + (place <= high)]) / 2
    return others


def _by_work(views: Iterable[RankView]) -> list[list[RankView]]:
    groups: dict[str, list[RankView]] = defaultdict(list)
    for view in views:
        groups[view.work].append(view)
    return list(groups.values())


def own_excess_ns(compute_ns: Floats, healthy_ns: Floats, groups: Sequence[Ints]) -> Floats:
    """Return compute time over the healthy one, less what the others gained: [n], ns.

    More work for all ranks (longer sequences) is no rank's fault. ``groups``: rows of the ranks that do the same work,
    each row once. The others are those of the same work if there are at least two; a stage with a single replica is
    compared with the whole job.
    """
    growth = compute_ns / healthy_ns
    common = median_of_others(growth) if len(growth) > 1 else np.ones(len(growth))
    for rows in groups:
        if len(rows) > 2:
            common[rows] = median_of_others(growth[rows])
    return np.asarray(compute_ns - np.maximum(1.0, common) * healthy_ns)


def _own_excess(views: Sequence[RankView]) -> dict[int, float]:
    """Return ``own_excess_ns`` by rank, for the ranks whose compute time is known, now and healthy."""
    groups = _by_work(view for view in views if view.compute_ns is not None and view.healthy_compute_ns)
    known = [view for group in groups for view in group]
    bounds = np.cumsum([0] + [len(group) for group in groups])
    own = own_excess_ns(
        np.array([view.compute_ns for view in known], dtype=np.float64),
        np.array([view.healthy_compute_ns for view in known], dtype=np.float64),
        [np.arange(begin, end) for begin, end in pairwise(bounds.tolist())],
    )
    return dict(zip((view.rank for view in known), own.tolist(), strict=True))


def _common_gain_ns(views: Sequence[RankView], loss_ns: float) -> float:
    """Return how much an iteration grew because all computations grew: then waits grow, too, and show nothing."""
    growth = [
        view.compute_ns / view.healthy_compute_ns for view in views if view.compute_ns and view.healthy_compute_ns
    ]
    if not growth:
        return 0.0
    healthy_ns = statistics.median([view.iteration_ns for view in views]) - loss_ns
    return (statistics.median(growth) - 1.0) * healthy_ns


def _computation(views: Sequence[RankView], own: dict[int, float], floor: float) -> list[Verdict]:
    slow = {view.rank: view for view in views if own.get(view.rank, 0.0) >= floor > 0.0}
    found: list[Verdict] = []
    for ranks, node in _joined(views, slow, own):
        worst = max(ranks, key=lambda rank: own[rank])
        view = slow[worst]
        stalls = [slow[rank].stall_share for rank in ranks]
        found.append(
            Verdict(
                kind="Computation",
                ranks=ranks,
                excess_ns=own[worst],
                ratio=(view.compute_ns or 0.0) / (view.healthy_compute_ns or 1.0),
                node=node,
                stalled=all(share is not None and share >= 0.5 for share in stalls),
            )
        )
    return found


def _joined(
    views: Sequence[RankView], slow: dict[int, RankView], own: dict[int, float]
) -> list[tuple[tuple[int, ...], str]]:
    """Join slow ranks to findings (ranks, node): whole nodes first, then whole communicators, then single ranks."""
    left = set(slow)
    found: list[tuple[tuple[int, ...], str]] = []
    nodes: dict[str, list[int]] = {view.node: [] for view in slow.values() if view.node}
    for view in views:
        if view.node in nodes:
            nodes[view.node].append(view.rank)
    # By name first: the members of a large communicator are hashed once, not once a member.
    named = {wait.comm: wait.members for view in slow.values() for wait in view.waits if not wait.p2p}
    groups = {*named.values(), *(members for view in slow.values() for members in view.unseen)}
    candidates = [(tuple(sorted(ranks)), node) for node, ranks in nodes.items()]
    candidates += sorted(((tuple(sorted(members)), "") for members in groups), key=lambda group: (len(group[0]), group))
    for ranks, node in candidates:
        # All ranks of the job together are no finding: no rank would be left to compare them with.
        if 1 < len(ranks) < len(views) and left.issuperset(ranks) and _alike([own[rank] for rank in ranks]):
            found.append((ranks, node))
            left -= set(ranks)
    return found + [((rank,), "") for rank in sorted(left)]


def _alike(excess_ns: Sequence[float]) -> bool:
    return min(excess_ns) >= JUDGEMENT.alike_share * max(excess_ns)


def _by_level(views: Sequence[RankView], factor: float) -> list[Verdict]:
    """Apply the median rule to a single set of medians."""
    found: list[Verdict] = []
    for group in _by_work(view for view in views if view.compute_ns is not None):
        # Ranks with other work have other levels without being slow, so each group is judged by itself.
        series = [Series(rank=view.rank, iterations=1, values_ns=[round(view.compute_ns or 0.0)]) for view in group]
        found += [
            Verdict(kind="Computation", ranks=(out.rank,), excess_ns=out.value_ns - out.peers_ns, ratio=out.ratio)
            for out in outliers(series, factor=factor, consecutive=1)
        ]
    return sorted(found, key=lambda verdict: -verdict.excess_ns)


def _imbalance(views: Sequence[RankView]) -> list[Verdict]:
    """Find the kind of work that takes longest, if another takes clearly less."""
    groups = [
        (statistics.median([view.compute_ns or 0.0 for view in group]), group)
        for group in _by_work(view for view in views if view.compute_ns is not None)
    ]
    if len(groups) < 2:
        return []
    heaviest, group = max(groups, key=lambda pair: pair[0])
    rest = statistics.median([compute for compute, other in groups if other is not group])
    if rest <= 0.0 or heaviest < JUDGEMENT.imbalance_factor * rest:
        return []
    ranks = tuple(sorted(view.rank for view in group))
    return [Verdict(kind="Imbalance", ranks=ranks, excess_ns=heaviest - rest, ratio=heaviest / rest)]


# communication


class _Comm(msgspec.Struct):
    members: tuple[int, ...]
    p2p: bool
    excess_ns: dict[int, float]
    parts_ns: dict[int, tuple[float, ...]]


def _comms(views: Sequence[RankView]) -> dict[str, _Comm]:
    comms: dict[str, _Comm] = {}
    for view in views:
        for wait in view.waits:
            comm = comms.setdefault(wait.comm, _Comm(wait.members, wait.p2p, {}, {}))
            comm.excess_ns[view.rank] = wait.excess_ns
            comm.parts_ns[view.rank] = wait.parts_ns or (wait.excess_ns,)
    return comms


def _transfer_growth(views: Sequence[RankView]) -> dict[str, float]:
    """Return by communicator whose members all reported the smallest excess, part by part, ns."""
    return {
        name: sum(max(0.0, min(part)) for part in zip(*comm.parts_ns.values(), strict=False))
        for name, comm in _comms(views).items()
        if len(comm.members) > 1 and comm.excess_ns.keys() >= set(comm.members)
    }


def _links(views: Sequence[RankView], growth: dict[str, float], floor: float) -> list[Verdict]:
    comms = _comms(views)
    slow = sorted((name for name in growth if growth[name] >= floor > 0.0), key=lambda name: -growth[name])
    if not slow:
        return []
    # Only what the slowest link added is taken off: how far the others add to it is not known.
    healthy_ns = statistics.median([view.iteration_ns for view in views]) - growth[slow[0]]
    node_of = {view.rank: view.node for view in views}

    def verdict(names: list[str], node: str = "") -> Verdict:
        ranks = {rank for name in names for rank in comms[name].members if not node or node_of[rank] == node}
        excess = growth[names[0]]
        return Verdict(
            kind="Suspected" if all(comms[name].p2p for name in names) else "Communication",
            ranks=tuple(sorted(ranks)),
            excess_ns=excess,
            ratio=1.0 + excess / max(healthy_ns, 1.0),
            node=node,
            comm=", ".join(names),
        )

    touched = [{node_of.get(rank, "") for rank in comms[name].members} - {""} for name in slow]
    # If all slow links meet in one node, the node's own adapter explains them.
    shared = set.intersection(*touched) if len(slow) > 1 else set()
    if len(shared) == 1:
        return [verdict(slow, shared.pop())]
    return [verdict([name]) for name in slow]


# the wait-for graph


class _Waits(msgspec.Struct):
    """The wait-for graph, by rank, ns an iteration."""

    waited: dict[int, float]  # in all communicators together, what transfers gained left out
    caused: dict[int, float]  # the longest wait of another rank for this one
    waiters: dict[int, set[int]]  # that wait for this one


def _wait_graph(comms: dict[str, _Comm], growth: dict[str, float], floor: float) -> _Waits:
    """Build the graph: every rank that waits points to all members of its communicator that do not wait."""
    graph = _Waits(defaultdict(float), defaultdict(float), defaultdict(set))
    for name, comm in comms.items():
        # What all members have in common is a longer transfer, and no wait of one for another.
        excess = {rank: value - growth.get(name, 0.0) for rank, value in comm.excess_ns.items()}
        late = [rank for rank in comm.members if excess.get(rank, 0.0) < floor / 2]
        for rank, value in excess.items():
            graph.waited[rank] += max(0.0, value)
        waiting = {rank: value for rank, value in excess.items() if value >= floor > 0.0}
        for cause in late if waiting else ():
            graph.caused[cause] = max(graph.caused[cause], *waiting.values())
            graph.waiters[cause].update(waiting)
    return graph


def _sinks(views: Sequence[RankView], growth: dict[str, float], floor: float) -> list[Verdict]:
    """Find the ranks that others wait for and that wait for no rank themselves."""
    graph = _wait_graph(_comms(views), growth, floor)
    sinks = [rank for rank in sorted(graph.caused) if graph.waited[rank] < floor]
    # Where no rank waits, each one counts as a sink, and the graph says nothing.
    if not sinks or len(sinks) == len(views):
        return []
    worst = max(graph.caused[rank] for rank in sinks)
    iteration_ns = statistics.median([view.iteration_ns for view in views])
    ratio = iteration_ns / max(iteration_ns - worst, 1.0)
    by_rank = {view.rank: view for view in views}
    # Without its compute time a rank cannot be acquitted: it is named, and not a link.
    if any(rank not in by_rank or by_rank[rank].compute_ns is None for rank in sinks):
        return [Verdict(kind="Computation", ranks=tuple(sinks), excess_ns=worst, ratio=ratio)]
    # They compute as before, so the link between them and the waiting ranks is slow. In a collective that cannot be.
    ends = {
        rank
        for sink in sinks
        for waiter in graph.waiters[sink]
        if _adjacent(by_rank, waiter, sink)
        for rank in (sink, waiter)
    }
    return [Verdict(kind="Suspected", ranks=tuple(sorted(ends)), excess_ns=worst, ratio=ratio)] if ends else []


def _adjacent(by_rank: dict[int, RankView], rank: int, sink: int) -> bool:
    """Check whether two ranks send to each other."""
    return any(wait.p2p and sink in wait.members for wait in by_rank[rank].waits)
