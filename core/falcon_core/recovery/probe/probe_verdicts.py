"""Judge a measurement during a pause: which link is slow, and whether a slow rank's machine is.

Machines and links are compared with others that were measured in the same way at the same time
(``preflight.machine_test``, ``preflight.link_test``). One round is enough, because it is already known that something
is slow.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from falcon_core.judgement import JUDGEMENT
from falcon_core.planning.ski_rental import Loss
from falcon_core.recovery.diagnosis.communicator_progress import place
from falcon_core.recovery.model.observation import Observation
from falcon_core.recovery.model.probe import Probed
from falcon_core.recovery.model.slowdown import NAMED_RANKS, Culprit, SlowIncident, SlowLink, without
from falcon_core.recovery.model.stored import Place
from falcon_core.recovery.preflight.link_test import KNOWN_FACTOR, LINK_FACTOR, judge_links
from falcon_core.recovery.preflight.machine_test import SLOW_FACTOR, Found, Machine, judge
from falcon_core.recovery.strategies import swap_for_link

AGAIN_SECONDS: Final = 600.0  # after a probe by which all are alike
LEAST_RATIO: Final = 1.2  # of the peers' rate to a machine's own that is no noise of half a second's measurement
MOST_NAMED: Final = 8
replace = msgspec.structs.replace


def of_links(
    slow: SlowIncident,
    link: SlowLink,
    machines: Sequence[Machine],
    obs: Observation,
    factor: float = KNOWN_FACTOR,
) -> tuple[Probed, SlowLink]:
    """Return the result, and the slow link with its ends where they are known now.

    Its ranks may have other pods since it was named. ``factor``: as of ``judge_links``.
    """
    places = {rank.rank: place(obs, rank) for rank in obs.ranks}
    link = replace(link, ranks=[places.get(known.rank, known) for known in link.ranks])
    slow_machines, links = judge_links(machines, (), factor)
    probed = _ended(slow, obs)
    # All links of a machine are slow: its own adapter or CPU is the reason, and no single link.
    if slow_machines:
        found = replace(probed, found="Machine", text=slow_machines[0].text)
        return found, replace(link, node=obs.members[slow_machines[0].replica].node, pair=[])
    if links.slow:
        slowest = links.slow[0]
        pair = [end for name in slowest.pod_names if (end := _place(name, obs)) is not None]
        return replace(probed, found="Link", text=slowest.text), replace(link, node="", pair=pair)
    again = replace(probed, again_at=obs.now + AGAIN_SECONDS)
    # The slow link may be among those that were not measured: this is no sign that all are alike.
    if links.measured < links.wanted or not links.measured:
        why = f": {links.why_missing[0]}" if links.why_missing else ""
        return replace(again, text=f"{links.measured} of {links.wanted} links could be measured{why}"), link
    text = f"none of the {links.measured} links is far below its peers"
    return replace(again, found="Alike", text=text, slow_ns=slow.times.slow_ns), link


def with_link(slow: SlowIncident, link: SlowLink, obs: Observation) -> SlowIncident:
    """Return the incident of a measured link; a new link after a failed exchange starts a new count."""
    if slow.link is None or slow.swapped is None or not slow.swapped.failed:
        return replace(slow, subject=link)
    if swap_for_link.end_nodes(slow.link) == swap_for_link.end_nodes(link):
        return replace(slow, subject=link)
    excess_ns = max(0, slow.times.excess_ns)
    loss = Loss(seconds=obs.iterations * excess_ns / 1e9, generation=obs.generation, counted_iterations=obs.iterations)
    # What crosses it may be another communicator's.
    link = replace(link, comm="", excess_ns=excess_ns)
    applied = without(slow, swap_for_link.TYPE)
    return replace(
        slow, subject=link, loss=loss, applied=applied, swapped=None, restart=replace(slow.restart, switched_at=None)
    )


def of_unnamed(slow: SlowIncident, machines: Sequence[Machine], obs: Observation) -> tuple[Probed, SlowLink | None]:
    """Return the result where no rank was named, and the slow link; None where none is slow.

    A group that is suspected stays with the link if both of the link's ends are of it.
    """
    ranks = sorted(obs.ranks, key=lambda rank: rank.rank)
    if slow.link is not None and slow.link.siblings:
        probed, link = of_links(slow, slow.link, machines, obs, LINK_FACTOR)
        if probed.found not in ("Link", "Machine"):
            return probed, None
        if (
            swap_for_link.end_nodes(link) <= {known.node for known in slow.link.ranks}
            or slow.link.members > NAMED_RANKS
        ):
            return probed, link
    # Without a suspected group the slow link may lie anywhere in the job.
    somewhere = SlowLink(
        ranks=[place(obs, rank) for rank in ranks[:NAMED_RANKS]],
        members=len(ranks),
        comm="",
        excess_ns=slow.times.excess_ns,
        compute_growth=1.0,
    )
    probed, link = of_links(slow, somewhere, machines, obs, LINK_FACTOR)
    if probed.found == "Machine":
        own = [end for rank in ranks if (end := place(obs, rank)).node == link.node]
        link = replace(link, ranks=own[:NAMED_RANKS], members=len(own))
    return probed, link if probed.found in ("Link", "Machine") else None


def of_machine(slow: SlowIncident, culprit: Culprit, machines: Sequence[Machine], obs: Observation) -> Probed:
    """Return whether a slow rank's machine computes slowly by itself.

    It is why the rank is slow if it explains half of what the rank is slower (``action_share``), and is beyond noise.
    """
    # The machine need not explain all of it: caches and other ranks add to the slowness.
    least = max(LEAST_RATIO, 1 + JUDGEMENT.action_share * (culprit.slowdown - 1))
    probed = replace(_ended(slow, obs), node=culprit.node)
    again = replace(probed, again_at=obs.now + AGAIN_SECONDS)
    found = next((each for each in _ratios(machines) if each.replica == culprit.replica), None)
    if found is None:
        return replace(again, text=_why_unknown(machines, culprit.replica))
    if not found.kind:
        return replace(probed, found="Slow", text=found.text)
    if found.ratio >= least:
        return replace(probed, found="Slow", text=f"it computes {_compared(found)}")
    return replace(again, found="AsFast", text=f"it computes {_compared(found)}")


def of_check(machines: Sequence[Machine], obs: Observation) -> tuple[list[str], str]:
    """Return which machines and links are slow, in words, the slowest first, and the result of the whole in a line."""
    computing = judge(machines)
    # A machine that computes slowly is slow on all its links as well: it is named once.
    by_links, links = judge_links(machines, [each.replica for each in computing])
    slow = [f"{each.node} (pod {each.pod_name}): {_slow_words(each)}" for each in computing]
    for each in by_links:
        slow.append(f"{obs.members[each.replica].node} (pod {obs.members[each.replica].pod_name}): {each.text}")
    slow += [f"the link between {' and '.join(pair.nodes)}: {pair.text}" for pair in links.slow]
    parts = [_machines_words(machines, len(computing)), _missing_words(machines)]
    if links.wanted:
        bad = len(by_links) + len(links.slow)
        missing = f", {links.wanted - links.measured} not measured" if links.measured < links.wanted else ""
        parts.append(f"links: {links.measured} measured{missing}, {f'{bad} findings' if bad else 'none is slow'}")
    return slow[:MOST_NAMED], "; ".join(part for part in parts if part)


def _ratios(machines: Sequence[Machine]) -> list[Found]:
    """Return all machines that can be compared, with the kind of work in which each is the farthest behind."""
    return judge(machines, factor=0.0)


def _compared(found: Found) -> str:
    if found.ratio < LEAST_RATIO:
        return f"as fast as its peers ({found.ratio:.2f} times their time for the same {found.kind} work)"
    return f"{found.ratio:.1f}x as long as its peers for the same {found.kind} work"


def _slow_words(found: Found) -> str:
    return found.text if not found.kind else f"computes {_compared(found)}"


def _machines_words(machines: Sequence[Machine], slow: int) -> str:
    compared = _ratios(machines)
    if not compared:
        return "no machines could be compared"
    worst = max(each.ratio for each in compared)
    if slow:
        return f"machines: {len(compared)} compared, {slow} slow"
    return f"machines: {len(compared)} compared, none is slow (the slowest {worst:.2f}x as long, below {SLOW_FACTOR})"


def _missing_words(machines: Sequence[Machine]) -> str:
    missing = [each for each in machines if each.report is None or each.report.why]
    if not missing:
        return ""
    return f"{len(missing)} could not be measured: {_why_unknown(machines, missing[0].replica)}"


def _why_unknown(machines: Sequence[Machine], replica: int) -> str:
    """Return why a machine could not be compared."""
    report = next((each.report for each in machines if each.replica == replica), None)
    if report is None:
        return "its pod measures no machines (an agent or a launcher of an earlier version)"
    return report.why or "no other machine with the same devices and libraries was measured"


def _ended(slow: SlowIncident, obs: Observation) -> Probed:
    return replace(slow.probed or Probed(), at=obs.now, found="", text="", node="", standstill_seconds=0.0)


def _place(pod_name: str, obs: Observation) -> Place | None:
    """Return the place of a pod's first rank."""
    member = next(member for member in obs.members if member.pod_name == pod_name)
    rank = min((rank.rank for rank in obs.ranks if rank.replica == member.replica), default=None)
    return None if rank is None else Place(rank=rank, pod_name=pod_name, node=member.node)
