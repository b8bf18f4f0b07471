"""Find waits outside the calls that the shim knows: a barrier in a store, a lock on a file, a call that is not hooked.

A rank that waits there looks as if it computed. All ranks then look equally slow, and the rank that the others wait for
is hidden among them. Two things show who waits:

- **CPU time.** A rank that computes on its own threads uses the CPU, or is ready to run. Added time in which it does
  neither is a wait of unknown cause. This says nothing where a device may compute, since a thread that waits for a
  device sleeps as well. So it is asked only of ranks that ran for most of their computation while they were healthy.
- **Stack samples**, where all ranks wait: most of them stand at one place of the program, and a few stand elsewhere,
  such as the rank that holds the lock and sleeps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec
import numpy as np

from falcon_core.stats.medians import Flags, Floats
from falcon_core.wire.reporting.samples import StackSamples

_RAN: Final = 0.8  # of its healthy computation, which a rank ran for at least: else a device may have computed
_WAITS: Final = 2 / 3  # of the added time, in which a rank that waits did not run
_AT_PLACE: Final = 2 / 3  # of a rank's samples, at the place where most ranks stand
_ELSEWHERE: Final = 1 / 3  # likewise, of a rank that stands elsewhere, at most
_LEAST_SAMPLES: Final = 6


class RanWhile(msgspec.Struct, frozen=True, kw_only=True):
    """What ranks computed and ran in an iteration: arrays by rank, ns; NaN where it is not known."""

    compute_ns: Floats
    healthy_compute_ns: Floats
    ran_ns: Floats  # on the CPU, or ready to run
    healthy_ran_ns: Floats


Finding = Literal["Unknown", "Run", "Wait", "Contradict"]


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits outside known calls.

    ``Wait``: the ranks of ``waits``, and these alone, wait for the others; if none is left, all ranks wait, and it is
    not known for what. ``Run``: no rank waits. ``Contradict``: a few ranks wait while most run, so that neither the
    job's own work nor a rank explains it. ``Unknown``: CPU time says nothing here.
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
    runs = (_added_ns(ranks) > growth * ranks.healthy_compute_ns) & (idle <= 1 - _WAITS)
    if runs.any():
        # Half of the ranks may run: the others wait for them. If more do, it is the job that computes longer. And if
        # few of the others wait, they do not wait for these.
        few = 2 * int(runs.sum()) <= len(runs) and 2 * int(waits.sum()) >= int((~runs).sum())
        return Waiting(finding="Wait" if few else "Contradict", waits=~runs if few else none)
    if 2 * int(waits.sum()) <= len(waits):
        return Waiting(finding="Contradict", waits=none)
    elsewhere = standing_elsewhere(samples)
    return Waiting(finding="Wait", waits=~elsewhere)


def _added_ns(ranks: RanWhile) -> Floats:
    return np.asarray(ranks.compute_ns - ranks.healthy_compute_ns)


def idle_share(ranks: RanWhile, growth: float) -> Floats:
    """Return the share of each rank's added time in which it did not run: [n]; NaN where that says nothing.

    0 of a rank that computes no longer than it did.
    """
    added = _added_ns(ranks)
    ran = np.maximum(ranks.ran_ns - ranks.healthy_ran_ns, 0.0)
    idle = np.clip(1 - ran / np.maximum(added, 1.0), 0.0, 1.0)
    idle = np.where(added > growth * ranks.healthy_compute_ns, idle, 0.0)
    on_cpu = ranks.healthy_ran_ns >= _RAN * ranks.healthy_compute_ns
    return np.where(np.isnan(added) | np.isnan(ran) | ~on_cpu, np.nan, idle)


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
    elsewhere = at <= _ELSEWHERE
    return np.asarray(elsewhere) if bool((elsewhere | (at >= _AT_PLACE)).all()) else none


def _shares(samples: StackSamples | None) -> Mapping[tuple[str, ...], float]:
    """Return the share of a rank's samples at each place; empty where too few were taken."""
    if samples is None or samples.taken < _LEAST_SAMPLES:
        return {}
    return {tuple(place.frames): place.samples / samples.taken for place in samples.places}
