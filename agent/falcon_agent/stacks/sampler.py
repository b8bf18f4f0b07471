"""Sample the stacks of ranks that compute longer than before: the places of the program where they are found.

A rank that is slow in its own computation is slow somewhere. A sample is the stack of its main thread at some moment,
which that thread writes itself. The moments follow no rhythm, since iterations have one. A dozen of them cost the rank
less than a millisecond, and are taken once: again only when the slowdown has lasted for long, or when a rank is slow
again after it was not, since the reason may be another. Where no device computes, further ones follow: they show who
waits for whom where all ranks wait for a small part of an iteration.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Mapping

from falcon_agent.launch.run_dir import RunDir
from falcon_core.signals.job.stacks import place_of, sampled_thread
from falcon_core.wire.reporting.samples import MAX_PLACE_TEXT, MAX_PLACES, StackPlace, StackSamples

SAMPLES = 12
MOST_SAMPLES = 60  # of ranks without a device, which may wait where no call is seen
PAUSE_SECONDS = (0.3, 1.1)  # between two samples: the launcher passes the request on within this
AGAIN_SECONDS = 300.0
RETURN_SECONDS = 20.0  # between two dozens of a rank that was well in between: one that turns slow often is spared
FORGOTTEN_SECONDS = 15.0  # samples are kept of a rank that is as fast as before for a few iterations


class Samples:
    """The samples of each rank that computes longer."""

    def __init__(self, run_dir: RunDir, pause: random.Random | None = None, *, cpu_only: bool = False) -> None:
        """Begin without samples. ``pause`` draws the moments; ``cpu_only``: no device computes for the ranks."""
        self._run_dir = run_dir
        self._most = MOST_SAMPLES if cpu_only else SAMPLES
        self._pause = pause or random.Random()
        self._slow: dict[int, tuple[int, float]] = {}  # process ids, and when the rank was slow last, by rank
        self._last: set[int] = set()  # the ranks that were slow at the last look
        self._is_return = False  # a rank was slow, was not, and is again, since this dozen began
        self._begun = self._next = 0.0  # monotonic
        self._asked = self._read = 0
        self._places: dict[int, Counter[tuple[str, ...]]] = {}
        self._found: dict[int, StackSamples] = {}

    def look(self, slow: Mapping[int, int], now: float) -> bool:
        """Take the next sample if it is time. Return whether a dozen, or all, are taken just now: that is news.

        ``slow``: process ids of the ranks that compute longer than they did, by rank; ``now`` in seconds of a monotonic
        clock.
        """
        if self._changed(slow, now) or self._is_outdated(now):
            self._begin(now)
        if not self._slow or now < self._next or self._read == self._most:
            return False
        # A sample is read at the next turn: by then the threads have written it.
        is_read = self._asked > self._read
        if is_read:
            self._take()
        if self._asked < self._most:
            self._run_dir.ask_for_samples(time.time_ns(), [pid for pid, _ in self._slow.values()])
            self._asked += 1
        # A fixed pace could meet the iterations' own rhythm and always see the same place.
        self._next = now + self._pause.uniform(*PAUSE_SECONDS)
        if not is_read or self._read not in (SAMPLES, self._most):
            return False
        self._found = {rank: _summed(places) for rank, places in self._places.items() if places}
        return True

    def seconds_to_next(self, now: float) -> float:
        """Return when the next sample is due; infinity while none is wanted soon."""
        return max(0.0, self._next - now) if self._slow and self._read < self._most else math.inf

    def of(self, rank: int) -> StackSamples | None:
        """Return a rank's samples; None until a dozen are taken, and where its process answers none."""
        return self._found.get(rank)

    def _changed(self, slow: Mapping[int, int], now: float) -> bool:
        """Take over who is slow. Return whether a rank has joined, or has another process."""
        self._is_return |= any(rank in self._slow and rank not in self._last for rank in slow)
        self._last = set(slow)
        joined = any(self._slow.get(rank, (0, 0.0))[0] != pid for rank, pid in slow.items())
        # A rank that is only just no longer slow keeps its samples: it may be slow again at the next look.
        lasting = {rank: known for rank, known in self._slow.items() if now - known[1] <= FORGOTTEN_SECONDS}
        self._slow = {**lasting, **{rank: (pid, now) for rank, pid in slow.items()}}
        self._found = {rank: found for rank, found in self._found.items() if rank in self._slow}
        return joined

    def _is_outdated(self, now: float) -> bool:
        """Return whether all samples are taken, and so long ago that the rank may be slow elsewhere by now."""
        age = RETURN_SECONDS if self._is_return else AGAIN_SECONDS
        return self._read == self._most and now - self._begun >= age

    def _begin(self, now: float) -> None:
        self._begun = self._next = now
        self._asked = self._read = 0
        self._is_return = False
        self._places = {rank: Counter() for rank in self._slow}

    def _take(self) -> None:
        """Read the sample that was asked for last. A process that has written none is left out of the count."""
        self._read = self._asked
        for rank, (pid, _) in self._slow.items():
            place = place_of(sampled_thread(self._run_dir.stack_sample(pid)))
            if place:
                self._places[rank][place] += 1


def _summed(places: Counter[tuple[str, ...]]) -> StackSamples:
    return StackSamples(
        taken=places.total(),
        places=[
            StackPlace([frame[:MAX_PLACE_TEXT] for frame in frames], count)
            for frames, count in places.most_common(MAX_PLACES)
        ],
    )
