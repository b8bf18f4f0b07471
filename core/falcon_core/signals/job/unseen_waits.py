"""Find waits outside the calls that the shim knows: a barrier in a store, a lock on a file, a call that is not hooked.

A rank that waits there looks as if it computed. All ranks then look equally slow, and the rank that the others wait for
is hidden among them. Two things show who waits:

- **CPU time.** A rank that computes on its own threads uses the CPU, or is ready to run. Added time in which it does
  neither is a wait of unknown cause. This says nothing where a device may compute, since a thread that waits for a
  device sleeps as well. So it is asked only of ranks that ran for most of their computation while they were healthy.
- **Stack samples**, where all ranks wait: most of them stand at one place of the program, and a few stand elsewhere,
  such as the rank that holds the lock and sleeps. Where the wait is a small part of an iteration, most ranks spend the
  added time at one place, and a few are never found there: those for which the others wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from falcon_core.stats.binomial import chance_of_at_least
from falcon_core.stats.medians import Flags, Floats
from falcon_core.stats.order import median_of
from falcon_core.wire.reporting.samples import StackSamples

_RAN: Final = 2 / 3  # of its healthy computation, for which the typical rank ran: else a device may have computed
_WAITS: Final = 2 / 3  # of the added time, in which a rank that waits did not run
_AT_PLACE: Final = 2 / 3  # of a rank's samples, at the place where most ranks stand
_ELSEWHERE: Final = 1 / 3  # likewise, of a rank that stands elsewhere, at most
_LEAST_SAMPLES: Final = 6
_AT_WAIT: Final = 1 / 2  # of the added time, that the others spend at the place of the wait at least
_FOUND: Final = 1 / 4  # of the others' share of samples at that place: a rank with less does not wait there
_ALIKE: Final = 3 / 4  # of the largest added time, the smallest: ranks leave a barrier together
_EARLIER: Final = 1 / 20  # of the added time, by which the first of a queue is done before the next, at least
_CHANCE: Final = 1e-4  # in one job, that a rank which waits as the others do is found as rarely as the culprit was


class RanWhile(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks computed and ran in an iteration: arrays by rank, ns; NaN where it is not known."""

    iteration_ns: Floats
    compute_ns: Floats
    healthy_compute_ns: Floats
    ran_ns: Floats  # on the CPU, or ready to run
    healthy_ran_ns: Floats


Finding = Literal["Unknown", "Run", "Wait", "Alike", "Contradict"]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits outside known calls.

    ``Wait``: the ranks of ``waits``, and these alone, wait for the others. ``Alike``: most ranks wait, those of
    ``waits``, and nothing shows for what: any of them may be waited for. ``Run``: no rank waits. ``Contradict``: a few
    ranks wait while most run, so that neither the job's own work nor a rank explains it. ``Unknown``: CPU time says
    nothing here.
    """

    finding: Finding
    waits: Flags  # by rank


def waiting(ranks: RanWhile, samples: Sequence[StackSamples | None], growth: float) -> Waiting:
    """Find the ranks that wait outside known calls.

    ``samples``: of each rank's stack. ``growth``: a rank computes longer if it does by more than this share.
    """
    none = np.zeros(len(ranks.compute_ns), dtype=np.bool_)
    idle = idle_share(ranks, growth)
    if not len(idle) or np.isnan(idle).any():
        return Waiting(finding="Unknown", waits=none)
    waits = idle >= _WAITS
    if not waits.any():
        return Waiting(finding="Run", waits=none)
    longer = computes_longer(ranks, growth)
    # A rank that ran for a little longer is not what the others wait for.
    runs = longer & (idle <= 1 - _WAITS) & (_added_ns(ranks) >= _AT_WAIT * _added_ns(ranks).max())
    if runs.any():
        # Half of the ranks may run: the others wait for them. If more do, it is the job that computes longer. And if
        # few of the others wait, they do not wait for these.
        few = 2 * int(runs.sum()) <= len(runs) and 2 * int(waits.sum()) >= int((~runs).sum())
        return Waiting(finding="Wait" if few else "Contradict", waits=~runs if few else none)
    for part in (
        standing_elsewhere(samples),
        absent_from_wait(samples, ranks),
        at_places_of_their_own(samples, ranks),
        first_of_queue(samples, ranks, longer),
    ):
        if part.any():
            return Waiting(finding="Wait", waits=~part)
    # A rank that waits alone has none behind it. Several may be one that sleeps and those that wait for it.
    if int(waits.sum()) == 1:
        return Waiting(finding="Contradict", waits=none)
    return Waiting(finding="Alike", waits=longer)


def _added_ns(ranks: RanWhile) -> Floats:
    return np.asarray(ranks.compute_ns - ranks.healthy_compute_ns)


def computes_longer(ranks: RanWhile, growth: float) -> Flags:
    """Check which ranks compute longer than they did, by more than this share: [n]."""
    return np.asarray(_added_ns(ranks) > growth * ranks.healthy_compute_ns)


def idle_share(ranks: RanWhile, growth: float) -> Floats:
    """Return the share of each rank's added time in which it did not run: [n]; NaN where that says nothing.

    0 of a rank that computes no longer than it did.
    """
    added = _added_ns(ranks)
    ran = np.maximum(ranks.ran_ns - ranks.healthy_ran_ns, 0.0)
    idle = np.clip(1 - ran / np.maximum(added, 1.0), 0.0, 1.0)
    idle = np.where(computes_longer(ranks, growth), idle, 0.0)
    # Ranks that come late in a queue have always waited there.
    on_cpu = median_of(ranks.healthy_ran_ns / ranks.healthy_compute_ns) >= _RAN
    return np.where(np.isnan(added) | np.isnan(ran) | ~np.bool_(on_cpu), np.nan, idle)


def standing_elsewhere(samples: Sequence[StackSamples | None]) -> Flags:
    """Check which ranks stand elsewhere in the program than most ranks do: [n]; none where samples do not show it.

    They are fewer than half, and all other ranks stand at one place.
    """
    none = np.zeros(len(samples), dtype=np.bool_)
    shares = [_shares(each) for each in samples]
    known = [share for share in shares if share]
    if len(known) < len(shares) or len(known) < 3:
        return none
    places = Counter(max(share, key=lambda place: (share[place], place)) for share in known)
    place, most = places.most_common(1)[0]
    if 2 * most <= len(shares):
        return none
    at = np.array([share.get(place, 0.0) for share in known])
    taken = np.array([each.taken for each in samples if each is not None], dtype=np.float64)
    elsewhere = (at <= _ELSEWHERE) & _are_rare(at * taken, taken, np.full(len(at), _AT_PLACE))
    return elsewhere if bool((elsewhere | (at >= _AT_PLACE)).all()) else none


def absent_from_wait(samples: Sequence[StackSamples | None], ranks: RanWhile) -> Flags:
    """Check which ranks are hardly ever found where the others spend the added time: [n].

    None where samples do not show it, where ranks may have waited there before, or where half of the ranks are absent.
    """
    known = _of_all(samples)
    # Ranks that come one after the other, as in a queue for a lock, are delayed by different times, and all is open.
    added_ns = _added_ns(ranks)
    if added_ns.min() < _ALIKE * added_ns.max():
        return np.zeros(len(samples), dtype=np.bool_)
    taken = np.array([each.taken for each in known], dtype=np.float64)
    idle_ns = np.maximum(ranks.healthy_compute_ns - ranks.healthy_ran_ns, 0.0)
    least_ns = median_of(idle_ns) + _AT_WAIT * median_of(added_ns)
    least_share = least_ns / median_of(ranks.iteration_ns)
    found: list[Flags] = []
    for place in _places(known):
        least, most = _times_found(known, place)
        # Each rank is compared with all others together.
        usual = (least.sum() - least) / (taken.sum() - taken)
        rare = (usual >= least_share) & (most < _FOUND * usual * taken) & _are_rare(most, taken, usual)
        # A rank between the two kinds leaves it open who waits.
        if rare.any() and 2 * int(rare.sum()) < len(rare) and (rare | (least >= _FOUND * usual * taken)).all():
            found.append(rare)
    return _agreed(found, len(samples))


def at_places_of_their_own(samples: Sequence[StackSamples | None], ranks: RanWhile) -> Flags:
    """Check which ranks spend the added time at a place where the others hardly ever are: [n].

    None where samples do not show it, or where several groups of ranks have a place of their own: in a queue that
    always has the same order, its first ranks have one in the known calls, and its last in the queue.
    """
    known = _of_all(samples)
    taken = np.array([each.taken for each in known], dtype=np.float64)
    added_ns = _added_ns(ranks)
    # Ranks that come earlier than that one spend the time in calls that are known, and compute no longer.
    delayed = added_ns >= _AT_WAIT * added_ns.max()
    found: list[Flags] = []
    for place in _places(known):
        least, most = _times_found(known, place)
        there = delayed & (least >= _AT_WAIT * added_ns / ranks.iteration_ns * taken)
        if not there.any() or 2 * int(there.sum()) >= len(there):
            continue
        usual = float((least[there] / taken[there]).min())
        if ((most < _FOUND * usual * taken) & _are_rare(most, taken, np.full(len(taken), usual)))[~there].all():
            found.append(there)
    return _agreed(found, len(samples))


def first_of_queue(samples: Sequence[StackSamples | None], ranks: RanWhile, longer: Flags) -> Flags:
    """Check which rank the others queue behind, where they come in the same order each time: [n]; none if not known.

    Of the ranks that compute ``longer`` it comes first, and has a place of its own at which it spends the added time.
    Those behind it are delayed by as much. Ranks before it compute no longer, and take no samples.
    """
    found, rows = np.zeros(len(samples), dtype=np.bool_), np.flatnonzero(longer)
    added_ns, compute_ns = _added_ns(ranks)[rows], ranks.compute_ns[rows]
    known = [each for row in rows.tolist() if (each := samples[row]) is not None and each.taken >= _LEAST_SAMPLES]
    if len(rows) < 2 or len(known) < len(rows) or added_ns.min() < _ALIKE * added_ns.max():
        return found
    earliest, next_ns = np.sort(compute_ns)[:2].tolist()
    if next_ns - earliest < _EARLIER * added_ns.max():
        return found  # whether one of the two waits for the other is not known
    first, taken = int(compute_ns.argmin()), np.array([each.taken for each in known], dtype=np.float64)
    others = np.arange(len(rows)) != first
    for place in _places(known):
        least, most = _times_found(known, place)
        usual = float(least[first] / taken[first])
        if least[first] < _AT_WAIT * added_ns[first] / ranks.iteration_ns[rows[first]] * taken[first]:
            continue
        rare = (most < _FOUND * usual * taken) & _are_rare(most, taken, np.full(len(taken), usual))
        if rare[others].all():
            found[rows[first]] = True
    return found


def _of_all(samples: Sequence[StackSamples | None]) -> list[StackSamples]:
    """Return the samples; none where those of a rank are too few, or where either of two ranks may wait."""
    known = [each for each in samples if each is not None and each.taken >= _LEAST_SAMPLES]
    return known if len(known) == len(samples) >= 3 else []


def _places(known: Sequence[StackSamples]) -> set[tuple[str, ...]]:
    return {tuple(place.frames) for each in known for place in each.places}


def _agreed(found: Sequence[Flags], count: int) -> Flags:
    """Return the ranks that all places show; none of so many where the places show different ranks."""
    agree = bool(found) and all(np.array_equal(found[0], other) for other in found)
    return found[0] if agree else np.zeros(count, dtype=np.bool_)


def _times_found(known: Sequence[StackSamples], place: tuple[str, ...]) -> tuple[Floats, Floats]:
    """Return how often ranks were found at a place, at least and at most: only the most frequent places are known."""
    least, most = [], []
    for each in known:
        counts = {tuple(listed.frames): listed.samples for listed in each.places}
        unlisted = each.taken - sum(counts.values())
        least.append(counts.get(place, 0))
        most.append(counts.get(place, min(unlisted, *counts.values()) if counts else unlisted))
    return np.array(least, dtype=np.float64), np.array(most, dtype=np.float64)


def _are_rare(times: Floats, taken: Floats, usual: Floats) -> Flags:
    """Check which ranks are found too rarely at a place for ranks that are there for a ``usual`` share: [n] each."""
    chances = [
        chance_of_at_least(round(of - found), round(of), 1 - share)
        for found, of, share in zip(times.tolist(), taken.tolist(), usual.tolist(), strict=True)
    ]
    return np.array(chances) * len(times) < _CHANCE


def _shares(samples: StackSamples | None) -> Mapping[tuple[str, ...], float]:
    """Return the share of a rank's samples at each place; empty where too few were taken."""
    if samples is None or samples.taken < _LEAST_SAMPLES:
        return {}
    return {tuple(place.frames): place.samples / samples.taken for place in samples.places}
