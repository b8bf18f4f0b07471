"""What the outcomes come to, by pattern and pooled, and what falls short of the limits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from evaluation.harness import Measure
from evaluation.real_jobs.outcome import Outcome
from evaluation.real_jobs.scene import Broken

MOST_INCIDENTS: Final = 1.0  # in 10 000 healthy iterations
LEAST_FOUND: Final = 0.95


class Tally(msgspec.Struct, kw_only=True):
    """Counts over some outcomes of one code."""

    runs: int = 0
    iterations: int = 0
    incidents: int = 0
    silent: int = 0  # suspicions that passed silently
    faults: int = 0  # components that broke
    found: int = 0  # of them
    delays: list[int] = []  # iterations from the onset to the name
    wrong_named: int = 0  # components that were named and are not broken
    wrong_taken: int = 0  # runs × nodes
    right_taken: int = 0
    tracked: list[float] = []

    @property
    def rate(self) -> float:
        """Return the incidents in 10 000 iterations."""
        return 1e4 * self.incidents / max(1, self.iterations)

    @property
    def silent_rate(self) -> float:
        """Return the suspicions that passed silently, in 10 000 iterations."""
        return 1e4 * self.silent / max(1, self.iterations)

    @property
    def share_found(self) -> float:
        return self.found / max(1, self.faults)


def tally(outcomes: Iterable[Outcome]) -> Tally:
    """Count."""
    total = Tally()
    for outcome in outcomes:
        total.runs += 1
        total.iterations += outcome.iterations
        shown = sum(incident.incident_at is not None for incident in outcome.incidents)
        total.incidents += shown
        total.silent += len(outcome.incidents) - shown
        total.tracked.append(outcome.tracked)
        total.wrong_named += _wrong_named(outcome)
        total.wrong_taken += len({taken.node for taken in outcome.taken if not taken.slow})
        total.right_taken += len({taken.node for taken in outcome.taken if taken.slow})
        for broken in outcome.broken:
            total.faults += 1
            since = _named_since(outcome, broken)
            if since is not None:
                total.found += 1
                total.delays.append(since - broken.onset)
    return total


def _named_since(outcome: Outcome, broken: Broken) -> int | None:
    """Return the first iteration at which the component was named, no earlier than its onset."""
    named = [(incident.links if broken.link else incident.nodes).get(broken.node) for incident in outcome.incidents]
    return min((since for since in named if since is not None and since >= broken.onset), default=None)


def _wrong_named(outcome: Outcome) -> int:
    """Count the nodes that were named as slow, or as the only place of a slow link, and are not broken in this way."""
    named = [(False, incident.nodes) for incident in outcome.incidents]
    named += [(True, incident.links) for incident in outcome.incidents if len(incident.links) == 1]
    wrong = {
        (link, node)
        for link, nodes in named
        for node, since in nodes.items()
        if not _is_broken(outcome, node, link, since)
    }
    return len(wrong)


def _is_broken(outcome: Outcome, node: int, link: bool, at: int) -> bool:
    return any(broken.node == node and broken.link == link and at >= broken.onset for broken in outcome.broken)


def limits(outcomes: Sequence[Outcome]) -> list[Measure]:
    """Return the figures that have a limit, of the kinds of jobs that were played."""
    healthy, faulty = tally(_of(outcomes, healthy=True)), tally(_of(outcomes, healthy=False))
    found = []
    if healthy.runs:
        found += [
            Measure("healthy: nodes taken", healthy.wrong_taken, 0, most=True, form=".0f"),
            Measure("healthy: incidents in 10 000 iterations", healthy.rate, MOST_INCIDENTS, most=True, form=".1f"),
        ]
    if faulty.faults:
        found.append(Measure("faults found, right component", faulty.share_found, LEAST_FOUND, form=".0%"))
    if faulty.runs:
        found.append(Measure("faults: wrong nodes taken", faulty.wrong_taken, 0, most=True, form=".0f"))
    return found


# -- Markdown --------------------------------------------------------------------------------------------------------


def pooled_table(outcomes: Sequence[Outcome]) -> str:
    """Return the figures that the limits are about."""
    well, sick = (tally(_of(outcomes, healthy=healthy)) for healthy in (True, False))
    rows: list[tuple[str, Tally, Callable[[Tally], str], str]] = [
        ("healthy: runs, iterations", well, lambda t: f"{t.runs}, {t.iterations}", ""),
        ("healthy: nodes taken", well, lambda t: str(t.wrong_taken), "0"),
        ("healthy: incidents in 10 000 iterations", well, lambda t: f"{t.rate:.1f}", "≤ 1"),
        (
            "healthy: suspicions that passed silently, in 10 000 iterations",
            well,
            lambda t: f"{t.silent_rate:.1f}",
            "",
        ),
        ("healthy: components named", well, lambda t: str(t.wrong_named), ""),
        ("healthy: ranks whose iterations are followed", well, _share, ""),
        ("faults: runs", sick, lambda t: str(t.runs), ""),
        ("faults: right component named", sick, lambda t: f"{t.found} of {t.faults}", "≥ 95 %"),
        ("faults: delay to the name, median / worst", sick, _delays, ""),
        ("faults: wrong components taken", sick, lambda t: str(t.wrong_taken), "0"),
        ("faults: right components taken", sick, lambda t: str(t.right_taken), ""),
        ("faults: wrong components named", sick, lambda t: str(t.wrong_named), ""),
        ("faults: ranks whose iterations are followed", sick, _share, ""),
    ]
    lines = ["| pooled | measured | limit |", "|---|---|---|"]
    for what, found, cell, limit in rows:
        lines.append(f"| {what} | {cell(found) if found.runs else ''} | {limit} |")
    return "\n".join([*lines, ""])


def _of(outcomes: Sequence[Outcome], *, healthy: bool) -> list[Outcome]:
    return [outcome for outcome in outcomes if bool(outcome.broken) != healthy]


def pattern_table(outcomes: Sequence[Outcome], *, healthy: bool) -> str:
    """Return a row for each pattern."""
    head = ["incidents in 10 000 iterations", "components named", "nodes taken"]
    if not healthy:
        head = ["right component named", "delay, iterations", "wrong named", "wrong taken", "right taken"]
    lines = [f"| pattern | runs | {' | '.join(head)} | ranks followed |", "|---" * (len(head) + 3) + "|"]
    played = _of(outcomes, healthy=healthy)
    for name in dict.fromkeys(outcome.case.pattern for outcome in played):
        found = tally(outcome for outcome in played if outcome.case.pattern == name)
        cells = _healthy_cells(found) if healthy else _faulty_cells(found)
        lines.append(f"| {name} | {found.runs} | {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _healthy_cells(found: Tally) -> list[str]:
    return [f"{found.rate:.0f}", str(found.wrong_named), str(found.wrong_taken), _share(found)]


def _faulty_cells(found: Tally) -> list[str]:
    counts = [f"{found.found}/{found.faults}", _delays(found)]
    return [*counts, str(found.wrong_named), str(found.wrong_taken), str(found.right_taken), _share(found)]


def _share(found: Tally) -> str:
    return f"{statistics.fmean(found.tracked):.0%}" if found.tracked else ""


def _delays(found: Tally) -> str:
    return f"{statistics.median(found.delays):.0f} / {max(found.delays)}" if found.delays else "–"
