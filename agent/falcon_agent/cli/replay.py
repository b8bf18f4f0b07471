"""Replay recorded rings, one file per rank: show what Falcon saw, when, and which rank or link it named.

The records are handed to the same :class:`RankChain` that the agent runs, in the order in which they were published and
in polls of the agent's length. After each poll in which a rank is slow, the ranks are compared as the operator compares
them. The replay has no clock and depends on the files alone. So a user's complaint can become a test.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import numpy as np

from falcon_agent.rings.ring_reader import HOLE_SECONDS, Batch, RingReader
from falcon_core.signals.attribution.measured import Measured
from falcon_core.signals.changepoint.detector import Slowdown
from falcon_core.signals.job.culprits import RankView, Verdict, Wait, attribute_slowdown
from falcon_core.signals.job.transfers import Link, Matched, match, slow_links, transfer_medians, waits
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Kind, RecordArray, RingFormatError, RingHeader

_POLL_NS = 100_000_000


class Point(msgspec.Struct, frozen=True):
    """An iteration as it was judged, in ns; times of day by the recording's own clock."""

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
    """The results of the replay for one rank."""

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
    """The result that profile mode would have given for a slow episode: all members' calls, matched one by one."""

    first: int
    last: int
    waits_ns: dict[int, float]  # by rank, an iteration
    links: list[Link]  # whose transfers take longer than in the healthy iterations before


class Replay(msgspec.Struct, frozen=True):
    """The ranks in their order, and what was found."""

    ranks: list[RankReplay]
    findings: list[Finding]
    profiles: list[Profile] = []


class _Rank:
    """A rank's file, fed poll by poll."""

    def __init__(self, path: Path, detection: Detection) -> None:
        reader = RingReader(path)
        batches = _everything(reader)
        reader.close()
        self.header: RingHeader = reader.header
        self.records: RecordArray = np.concatenate([batch.records for batch in batches])
        self.lost = reader.lost_records > 0
        self.offset_ns = self.header.start_unix_ns - self.header.start_ns
        self.found = RankReplay(self.header.rank, len(self.records), reader.lost_records, reader.holes)
        self.chain = RankChain(detection, observe=self._observe)
        # A record is published when its call ends, and a ring's records in their order.
        published = (self.records["t_start_ns"] + self.records["duration_ns"]).astype(np.int64) + self.offset_ns
        self.published_ns = np.maximum.accumulate(published)
        self._next = 0

    def feed(self, until_unix_ns: int) -> bool:
        """Feed the records that were published by then. Return whether there were any."""
        end = int(np.searchsorted(self.published_ns, until_unix_ns, side="right"))
        if end <= self._next:
            return False
        self.chain.feed(self.records[self._next : end], lost=self.lost and self._next == 0)
        self._next = end
        self.found.period_calls = self.chain.period_calls or self.found.period_calls
        return True

    def between(self, begin_unix_ns: int, end_unix_ns: int) -> RecordArray:
        """Return the calls that began between the two times."""
        starts = self.records["t_start_ns"].astype(np.int64) + self.offset_ns
        return self.records[(starts >= begin_unix_ns) & (starts < end_unix_ns)]

    def _observe(self, measured: Measured, slowdown: Slowdown | None) -> None:
        found, iteration = self.found, measured.iteration
        if found.points and iteration.number <= found.points[-1].number:  # another period: what was before is void
            found.points = [point for point in found.points if point.number < iteration.number]
            found.episodes = [episode for episode in found.episodes if episode.reported < iteration.number]
        found.points.append(
            Point(
                number=iteration.number,
                start_unix_ns=iteration.start_ns + self.offset_ns,
                duration_ns=measured.iteration_ns,
                compute_ns=measured.compute_ns,
                wait_ns=measured.wait_ns,
                healthy_ns=self.chain.healthy_ns,
                interrupted=iteration.interrupted,
            )
        )
        # An episode lasts from its onset to its relief, and a rank has one at a time.
        current = found.episodes[-1] if found.episodes and found.episodes[-1].relieved is None else None
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
            found.episodes.append(current)
        current.after_ns = slowdown.after_ns


def _everything(reader: RingReader) -> list[Batch]:
    """Read the whole file, without waiting for records that were never published."""
    batches: list[Batch] = []
    quiet, moment, seen = 0, 0.0, 0
    while quiet < 2:
        batches.append(reader.read(moment))
        # The reader waits for a hole by its clock, so the clock jumps here instead of waiting.
        moment += 2 * HOLE_SECONDS
        got = len(batches[-1].records) + batches[-1].lost + reader.holes - seen
        seen = reader.holes
        quiet = 0 if got else quiet + 1
    return batches


def ring_files(paths: Iterable[Path]) -> list[Path]:
    """Replace each folder by the ring files in it.

    Raises:
        FileNotFoundError: a folder has no ring file.
    """
    files: list[Path] = []
    for path in paths:
        inside = sorted(path.glob("*.ring")) if path.is_dir() else [path]
        if not inside:
            raise FileNotFoundError(f"no *.ring file in the folder {path}")
        files += inside
    return files


def replay(paths: Sequence[Path], detection: Detection | None = None) -> Replay:
    """Replay a file for each rank.

    Raises:
        OSError: a file cannot be read.
        RingFormatError: a file is no ring, two files are of the same rank, or files are of different generations.
    """
    settings = detection or Detection()
    ranks = sorted((_Rank(path, settings) for path in paths), key=lambda rank: rank.header.rank)
    # Ranks of different generations never met, so comparing them would mean nothing.
    _check_one_life(ranks)
    members = communicators(ranks)
    findings: list[Finding] = []
    for until in _polls(ranks):
        fed = [rank.feed(until) for rank in ranks]
        if any(fed) and any(rank.chain.slowdown is not None for rank in ranks):
            _note(findings, ranks, members)
    profiles = _profiles(ranks, members) if len(ranks) > 1 and members else []
    return Replay([rank.found for rank in ranks], findings, profiles)


def _check_one_life(ranks: Sequence[_Rank]) -> None:
    """Raise RingFormatError unless each file is of another rank and all are of the same generation."""
    generations = sorted({rank.header.generation for rank in ranks})
    if len(generations) > 1:
        found = f"ring files of generations {' and '.join(map(str, generations))}"
        raise RingFormatError(f"{found}: pass the files of one generation, one per rank")
    numbers = [rank.header.rank for rank in ranks]
    twice = sorted({number for number in numbers if numbers.count(number) > 1})
    if twice:
        found = f"several ring files of rank {', '.join(map(str, twice))}"
        raise RingFormatError(f"{found}: pass one file per rank")


def _polls(ranks: Sequence[_Rank]) -> range:
    """Return the times at which an agent would have polled, in unix ns; empty where nothing was published."""
    published = [rank.published_ns for rank in ranks if len(rank.published_ns)]
    if not published:
        return range(0)
    first, last = min(int(times[0]) for times in published), max(int(times[-1]) for times in published)
    return range(first + _POLL_NS, last + 2 * _POLL_NS, _POLL_NS)


def communicators(ranks: Sequence[_Rank]) -> dict[tuple[int, int], tuple[str, tuple[int, ...]]]:
    """Map (rank, communicator id) to a job-wide name and the members, where the files show who the members are.

    A descriptor gives a communicator's size and the rank's place in it, but not the other members. Files with the same
    id and size are one communicator if each place in it is taken exactly once. Other communicators stay unnamed.
    """
    shapes: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for rank in ranks:
        for record in rank.records[rank.records["kind"] == Kind.DESCRIPTOR]:
            shapes[int(record["comm"]), int(record["group"])].append((int(record["peer_or_root"]), rank.header.rank))
    named: dict[tuple[int, int], tuple[str, tuple[int, ...]]] = {}
    for (comm, size), places in shapes.items():
        if sorted(place for place, _ in places) == list(range(size)):
            members = tuple(number for _, number in sorted(places))
            named |= {(number, comm): (str(comm), members) for number in members}
    return named


def _profiles(ranks: Sequence[_Rank], named: dict[tuple[int, int], tuple[str, tuple[int, ...]]]) -> list[Profile]:
    """Compare slow episodes with the healthy iterations before them.

    The episodes are those of the first rank that has any.
    """
    leader = next((rank for rank in ranks if rank.found.episodes), None)
    if leader is None:
        return []
    names = {key: name for key, (name, _) in named.items()}
    members = dict(named.values())
    points, episodes = leader.found.points, leader.found.episodes

    def matched(begin_unix_ns: int, end_unix_ns: int) -> list[Matched]:
        return match({rank.header.rank: rank.between(begin_unix_ns, end_unix_ns) for rank in ranks}, names, members)

    # What comes before the first episode is the reference for all of them.
    healthy = transfer_medians(matched(points[0].start_unix_ns, episodes[0].start_unix_ns))
    profiles = []
    for episode in episodes:
        slow = _points_of(episode, points)
        # One iteration has no gap between two starts, by which the waits are divided.
        if len(slow) < 2:
            continue
        calls = matched(slow[0].start_unix_ns, slow[-1].start_unix_ns)
        waited = {rank: sum(wait.excess_ns for wait in each) for rank, each in waits(calls, len(slow) - 1).items()}
        links = slow_links(calls, healthy)
        profiles.append(Profile(slow[0].number, slow[-1].number, dict(sorted(waited.items())), links))
    return profiles


def _points_of(episode: Episode, points: Sequence[Point]) -> list[Point]:
    """Return the iterations of a slowdown except the newest, whose end is not known."""
    end = episode.relieved or points[-1].number
    return [point for point in points if episode.first <= point.number < end]


def _note(
    findings: list[Finding], ranks: Sequence[_Rank], members: dict[tuple[int, int], tuple[str, tuple[int, ...]]]
) -> None:
    """Judge the ranks' present state: add a finding, or extend the last finding if the verdict is the same."""
    seen = [(rank, view) for rank in ranks if (view := _view(rank, members)) is not None]
    views = [view for _, view in seen]
    # The operator judges with the median loss of the ranks that report a slowdown, and so does the replay.
    losses = [
        view.iteration_ns - rank.chain.slowdown.before_ns for rank, view in seen if rank.chain.slowdown is not None
    ]
    number = max(rank.found.points[-1].number for rank in ranks if rank.found.points)
    loss = float(np.median(losses)) if losses else 0.0
    verdicts = attribute_slowdown(views, loss_ns=loss) if len(views) > 1 and loss > 0 else []
    latest = findings[-1] if findings else None
    # A short gap between two equal verdicts is noise, so they count as one finding.
    if latest is not None and number - latest.last <= 2 and _blamed(latest.verdicts) == _blamed(verdicts):
        findings[-1] = Finding(latest.first, number, verdicts)
    elif latest is None or number > latest.last:
        findings.append(Finding(number, number, verdicts))


def _view(rank: _Rank, members: dict[tuple[int, int], tuple[str, tuple[int, ...]]]) -> RankView | None:
    """Return what the operator would know of the rank now; None before its first whole window."""
    track = rank.chain.track()
    if track is None:
        return None
    waits_of_rank = [
        Wait(comm=named[0], members=named[1], excess_ns=sum(parts), parts_ns=parts)
        for comm, parts in track.excess_ns.items()
        if (named := members.get((rank.header.rank, comm))) is not None
    ]
    return RankView(
        rank=rank.header.rank,
        iteration_ns=track.iteration_ns,
        compute_ns=track.compute_ns,
        healthy_compute_ns=track.healthy_compute_ns,
        stall_share=track.stall_share,
        waits=tuple(waits_of_rank),
    )


def _blamed(verdicts: Sequence[Verdict]) -> set[tuple[str, tuple[int, ...]]]:
    return {(verdict.kind, verdict.ranks) for verdict in verdicts}


def describe(replayed: Replay) -> str:
    """Return the replay in words, a line for each fact."""
    lines = [line for rank in replayed.ranks for line in _describe_rank(rank)]
    for finding in replayed.findings:
        lines.append(f"iterations {finding.first}-{finding.last}: {name(finding.verdicts)}")
    for profile in replayed.profiles:
        waited = ", ".join(f"rank {rank} {_ms(wait)}" for rank, wait in profile.waits_ns.items())
        slow = (
            "; ".join(f"communicator {link.comm} {link.ratio:.1f}x the healthy time" for link in profile.links)
            or "none"
        )
        lines.append(
            f"profile of {profile.first}-{profile.last}: waits in each iteration: {waited}; slow transfers: {slow}"
        )
    if len(replayed.ranks) > 1 and not replayed.findings:
        lines.append("no rank was slow, so there is no rank or link to name")
    return "\n".join(lines)


def _describe_rank(rank: RankReplay) -> list[str]:
    missing = f"; {rank.lost} lost, {rank.holes} holes" if rank.lost or rank.holes else ""
    if not rank.points:
        return [f"rank {rank.rank}: {rank.records} records{missing}: no recurring cycle"]
    healthy = rank.points[-1].healthy_ns
    newest = float(np.median([point.duration_ns for point in rank.points[-5:]]))
    lines = [
        f"rank {rank.rank}: {rank.points[-1].number} iterations of {rank.period_calls} calls{missing}; "
        f"healthy {_ms(healthy)}, at the end {_ms(newest)}"
    ]
    for episode in rank.episodes:
        at = datetime.fromtimestamp(episode.start_unix_ns / 1e9, UTC).strftime("%H:%M:%S")
        over = "not over at the end" if episode.relieved is None else f"over at iteration {episode.relieved}"
        delay = episode.reported - episode.first + 1
        lines.append(
            f"  slow since iteration {episode.first} ({at} UTC), reported after {delay} iterations: "
            f"{_ms(episode.before_ns)} -> {_ms(episode.after_ns)}; {over}"
        )
    return lines


def name(verdicts: Sequence[Verdict]) -> str:
    """Return whom the verdicts blame, in words."""
    return "; ".join(map(_name, verdicts)) or "no rank stands out"


def _name(verdict: Verdict) -> str:
    who = ("rank " if len(verdict.ranks) == 1 else "ranks ") + ", ".join(map(str, verdict.ranks))
    match verdict.kind:
        case "Computation":
            return _takes(who, verdict)
        case "Communication":
            return f"slow link in communicator {verdict.comm} ({who}): costs {_ms(verdict.excess_ns)} in each iteration"
        case "Suspected":
            return f"a slow link between {who} is suspected: costs {_ms(verdict.excess_ns)} in each iteration"
        case "Imbalance":
            return f"{who} have {verdict.ratio:.1f}x the work of the others"


def _takes(who: str, verdict: Verdict) -> str:
    verb = "takes" if len(verdict.ranks) == 1 else "take"
    place = ", all of the excess at one place" if verdict.stalled else ""
    return f"{who} {verb} {verdict.ratio:.1f}x the healthy compute time{place}"


def _ms(nanoseconds: float | None) -> str:
    return "unknown" if nanoseconds is None else f"{nanoseconds / 1e6:.0f} ms"
