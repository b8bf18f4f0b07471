"""A captured ring, or one of each rank, through the whole chain: what Falcon saw, when, and whom it blamed.

The records are handed to the same :class:`RankChain` that the agent runs, in the order in which they were published and
in polls of the agent's length; after each poll in which a rank has an onset, the operator's comparison of the ranks is
asked. The replay has no clock: it depends on the files alone, so a complaint becomes a test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from falcon_agent.ring_reader import HOLE_SECONDS, Batch, RingReader
from falcon_core.signals.changepoint import Slowdown
from falcon_core.signals.culprits import RankView, Verdict, Wait, attribute_slowdown
from falcon_core.signals.rank import Measured, RankChain
from falcon_core.signals.transfers import Link, Matched, match, slow_links, transfer_medians, waits
from falcon_core.wire.messages import Detection
from falcon_core.wire.ring import Kind, RecordArray, RingFormatError, RingHeader

_POLL_NS = 100_000_000


class Point(msgspec.Struct, frozen=True):
    """One iteration as it was judged, ns; times of day by the recording's own clock."""

    number: int
    start_unix_ns: int
    duration_ns: int
    compute_ns: int | None
    wait_ns: int | None
    healthy_ns: int | None
    interrupted: bool


class Episode(msgspec.Struct):
    """A slowdown that was reported."""

    first: int  # iteration
    reported: int
    start_unix_ns: int
    before_ns: int
    after_ns: int
    relieved: int | None = None  # the iteration at whose end it was over


class RankReplay(msgspec.Struct):
    """All that was learned of one rank."""

    rank: int
    records: int = 0
    lost: int = 0
    holes: int = 0
    period_calls: int | None = None
    points: list[Point] = []
    episodes: list[Episode] = []


class Finding(msgspec.Struct, frozen=True):
    """A judgement from its first iteration to its last one."""

    first: int
    last: int
    verdicts: list[Verdict]


class Profile(msgspec.Struct, frozen=True):
    """What profile mode would have said of a slow episode: all members' calls, matched one by one."""

    first: int
    last: int
    waits_ns: dict[int, float]  # by rank, an iteration
    links: list[Link]  # whose transfers take longer than in the healthy iterations before


class Replay(msgspec.Struct, frozen=True):
    """Ranks in their order, and what was found."""

    ranks: list[RankReplay]
    findings: list[Finding]
    profiles: list[Profile] = []


class _Rank:
    """One file, fed poll by poll."""

    def __init__(self, path: Path, detection: Detection) -> None:
        reader = RingReader(path)
        batches = _everything(reader)
        reader.close()
        self.header: RingHeader = reader.header
        self.records: RecordArray = np.concatenate([batch.records for batch in batches])
        self.lost = reader.lost_records > 0
        self.offset_ns = self.header.start_unix_ns - self.header.start_ns
        self.told = RankReplay(self.header.rank, len(self.records), reader.lost_records, reader.holes)
        self.chain = RankChain(detection, observe=self._observe)
        published = (self.records["t_start_ns"] + self.records["duration_ns"]).astype(np.int64) + self.offset_ns
        self.published_ns = np.maximum.accumulate(published)
        self._next = 0

    def feed(self, until_unix_ns: int) -> bool:
        """Records published by then; True if there were any."""
        end = int(np.searchsorted(self.published_ns, until_unix_ns, side="right"))
        if end <= self._next:
            return False
        self.chain.feed(self.records[self._next : end], lost=self.lost and self._next == 0)
        self._next = end
        self.told.period_calls = self.chain.period_calls or self.told.period_calls
        return True

    def between(self, begin_unix_ns: int, end_unix_ns: int) -> RecordArray:
        """Calls that began in that time."""
        starts = self.records["t_start_ns"].astype(np.int64) + self.offset_ns
        return self.records[(starts >= begin_unix_ns) & (starts < end_unix_ns)]

    def _observe(self, measured: Measured, slowdown: Slowdown | None) -> None:
        told, iteration = self.told, measured.iteration
        if told.points and iteration.number <= told.points[-1].number:  # another period: what was before is void
            told.points = [point for point in told.points if point.number < iteration.number]
            told.episodes = [episode for episode in told.episodes if episode.reported < iteration.number]
        told.points.append(
            Point(
                number=iteration.number,
                start_unix_ns=iteration.start_ns + self.offset_ns,
                duration_ns=iteration.duration_ns,
                compute_ns=measured.compute_ns,
                wait_ns=measured.wait_ns,
                healthy_ns=self.chain.healthy_ns,
                interrupted=iteration.interrupted,
            )
        )
        current = told.episodes[-1] if told.episodes and told.episodes[-1].relieved is None else None
        if slowdown is None:
            if current is not None:
                current.relieved = iteration.number
            return
        if current is None:
            current = Episode(
                first=slowdown.first_iteration,
                reported=slowdown.reported_iteration,
                start_unix_ns=slowdown.start_ns + self.offset_ns,
                before_ns=slowdown.before_ns,
                after_ns=slowdown.after_ns,
            )
            told.episodes.append(current)
        current.after_ns = slowdown.after_ns


def _everything(reader: RingReader) -> list[Batch]:
    """All that is in the file; what was never published is waited for at once."""
    batches: list[Batch] = []
    quiet, moment, seen = 0, 0.0, 0
    while quiet < 2:
        batches.append(reader.read(moment))
        moment += 2 * HOLE_SECONDS
        got = len(batches[-1].records) + batches[-1].lost + reader.holes - seen
        seen = reader.holes
        quiet = 0 if got else quiet + 1
    return batches


def replay(paths: Sequence[Path], detection: Detection | None = None) -> Replay:
    """Replay one file a rank.

    Raises:
        OSError: a file cannot be read.
        RingFormatError: a file is no ring, or two are of one rank or of different generations.
    """
    settings = detection or Detection()
    ranks = sorted((_Rank(path, settings) for path in paths), key=lambda one: one.header.rank)
    if len({one.header.rank for one in ranks}) < len(ranks) or len({one.header.generation for one in ranks}) > 1:
        raise RingFormatError("one file a rank, all of one generation: these are of several lives of the job")
    findings: list[Finding] = []
    profiles: list[Profile] = []
    published = [one.published_ns for one in ranks if len(one.published_ns)]
    if published:
        members = communicators(ranks)
        first, last = min(int(one[0]) for one in published), max(int(one[-1]) for one in published)
        for until in range(first + _POLL_NS, last + 2 * _POLL_NS, _POLL_NS):
            fed = [one.feed(until) for one in ranks]
            if any(fed) and any(one.chain.slowdown is not None for one in ranks):
                _note(findings, ranks, members)
        if len(ranks) > 1 and members:
            profiles = _profiles(ranks, members)
    return Replay([one.told for one in ranks], findings, profiles)


def communicators(ranks: Sequence[_Rank]) -> dict[tuple[int, int], tuple[str, tuple[int, ...]]]:
    """(rank, communicator id) → job-wide name and members, for those whose members the files tell.

    A descriptor says how large a communicator is and which of it the rank is, not who the others are: files with the
    same id and size are one communicator if each place in it is taken once. Others stay unnamed.
    """
    shapes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for one in ranks:
        for told in one.records[one.records["kind"] == Kind.DESCRIPTOR]:
            shapes[int(told["comm"]), int(told["group"])].append((int(told["peer_or_root"]), one.header.rank))
    named: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
    for (comm, size), places in shapes.items():
        if sorted(place for place, _ in places) == list(range(size)):
            members = tuple(rank for _, rank in sorted(places))
            named |= {(rank, comm): (str(comm), members) for rank in members}
    return named


def _profiles(ranks: Sequence[_Rank], named: dict[tuple[int, int], tuple[str, tuple[int, ...]]]) -> list[Profile]:
    """The slow episodes of the first rank that has any, held against the healthy iterations before the first one."""
    leader = next((one for one in ranks if one.told.episodes), None)
    if leader is None:
        return []
    names = {key: name for key, (name, _) in named.items()}
    members = dict(named.values())
    points, episodes = leader.told.points, leader.told.episodes

    def matched(begin_unix_ns: int, end_unix_ns: int) -> list[Matched]:
        return match({one.header.rank: one.between(begin_unix_ns, end_unix_ns) for one in ranks}, names, members)

    healthy = transfer_medians(matched(points[0].start_unix_ns, episodes[0].start_unix_ns))
    profiles = []
    for episode in episodes:
        slow = [point for point in points if episode.first <= point.number < (episode.relieved or points[-1].number)]
        if len(slow) < 2:
            continue
        calls = matched(slow[0].start_unix_ns, slow[-1].start_unix_ns)
        waited = {rank: sum(wait.excess_ns for wait in told) for rank, told in waits(calls, len(slow) - 1).items()}
        links = slow_links(calls, healthy)
        profiles.append(Profile(slow[0].number, slow[-1].number, dict(sorted(waited.items())), links))
    return profiles


def _note(
    findings: list[Finding], ranks: Sequence[_Rank], members: dict[tuple[int, int], tuple[str, tuple[int, ...]]]
) -> None:
    """Judge what the ranks say now, and add it to the findings or prolong the last one."""
    views, losses = [], []
    for one in ranks:
        track = one.chain.track()
        if track is None:
            continue
        told = [
            Wait(comm=named[0], members=named[1], excess_ns=sum(parts), parts_ns=parts)
            for comm, parts in track.excess_ns.items()
            if (named := members.get((one.header.rank, comm))) is not None
        ]
        views.append(
            RankView(
                rank=one.header.rank,
                iteration_ns=track.iteration_ns,
                compute_ns=track.compute_ns,
                healthy_compute_ns=track.healthy_compute_ns,
                stall_share=track.stall_share,
                waits=tuple(told),
            )
        )
        if one.chain.slowdown is not None:
            losses.append(track.iteration_ns - one.chain.slowdown.before_ns)
    number = max(one.told.points[-1].number for one in ranks if one.told.points)
    loss = float(np.median(losses)) if losses else 0.0
    verdicts = attribute_slowdown(views, loss_ns=loss) if len(views) > 1 and loss > 0 else []
    latest = findings[-1] if findings else None
    if latest is not None and number - latest.last <= 2 and _blamed(latest.verdicts) == _blamed(verdicts):
        findings[-1] = Finding(latest.first, number, verdicts)
    elif latest is None or number > latest.last:
        findings.append(Finding(number, number, verdicts))


def _blamed(verdicts: Sequence[Verdict]) -> set[tuple[str, tuple[int, ...]]]:
    return {(verdict.kind, verdict.ranks) for verdict in verdicts}


def describe(told: Replay) -> str:
    """The replay in words, one fact a line."""
    lines = []
    for rank in told.ranks:
        missing = f"; {rank.lost} lost, {rank.holes} holes" if rank.lost or rank.holes else ""
        if not rank.points:
            lines.append(f"rank {rank.rank}: {rank.records} records{missing}: no recurring cycle")
            continue
        healthy = rank.points[-1].healthy_ns
        newest = float(np.median([point.duration_ns for point in rank.points[-5:]]))
        lines.append(
            f"rank {rank.rank}: {rank.points[-1].number} iterations of {rank.period_calls} calls{missing}; "
            f"healthy {_ms(healthy)}, at the end {_ms(newest)}"
        )
        for episode in rank.episodes:
            at = datetime.fromtimestamp(episode.start_unix_ns / 1e9, UTC).strftime("%H:%M:%S")
            over = "never relieved" if episode.relieved is None else f"relieved at iteration {episode.relieved}"
            delay = episode.reported - episode.first + 1
            lines.append(
                f"  slow since iteration {episode.first} ({at} UTC), reported after {delay}: "
                f"{_ms(episode.before_ns)} -> {_ms(episode.after_ns)}; {over}"
            )
    for finding in told.findings:
        lines.append(f"iterations {finding.first}-{finding.last}: {name(finding.verdicts)}")
    for profile in told.profiles:
        waited = ", ".join(f"rank {rank} {_ms(wait)}" for rank, wait in profile.waits_ns.items())
        slow = "; ".join(f"communicator {link.comm} {link.ratio:.1f}x" for link in profile.links) or "none"
        lines.append(f"profile of {profile.first}-{profile.last}: waits an iteration: {waited}; slow transfers: {slow}")
    if len(told.ranks) > 1 and not told.findings:
        lines.append("nothing to judge: no rank was slow")
    return "\n".join(lines)


def name(verdicts: Sequence[Verdict]) -> str:
    """Whom the verdicts blame, in words."""
    if not verdicts:
        return "nobody stands out"
    told = []
    for verdict in verdicts:
        who = ("rank " if len(verdict.ranks) == 1 else "ranks ") + ", ".join(map(str, verdict.ranks))
        match verdict.kind:
            case "Computation":
                told.append(
                    f"{who} computes {verdict.ratio:.1f}x longer" + (", at one place" if verdict.stalled else "")
                )
            case "Communication":
                told.append(f"slow link in communicator {verdict.comm} ({who}): {_ms(verdict.excess_ns)} an iteration")
            case "Suspected":
                told.append(f"a slow link between {who} is suspected: {_ms(verdict.excess_ns)} an iteration")
            case "Imbalance":
                told.append(f"{who} have {verdict.ratio:.1f}x the work of the others")
    return "; ".join(told)


def _ms(nanoseconds: float | None) -> str:
    return "unknown" if nanoseconds is None else f"{nanoseconds / 1e6:.0f} ms"
