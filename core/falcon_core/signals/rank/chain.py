"""Process the ring records of one rank into the signals that its agent reports.

The result is the same however the records are split into batches. So a ring that is read again after the agent's death
leads to the same counts, and a recorded ring is a test.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

from falcon_core.signals.attribution.call_excess import healthy_calls, least_excess, median_excess
from falcon_core.signals.attribution.compute_and_wait import Attributed, attribute
from falcon_core.signals.attribution.even_share_compute import Shares
from falcon_core.signals.attribution.even_share_waits import KeptWaits, kept
from falcon_core.signals.attribution.healthy_compute import HealthyComputation
from falcon_core.signals.attribution.measured import Measured, Measurer, median_micro_ns, newest_known
from falcon_core.signals.attribution.work_kind import Peers, usual_size, work_of
from falcon_core.signals.calls.stream import CallOrder, Calls, Tokenizer
from falcon_core.signals.changepoint.detector import ChangeDetector, Reference, Slowdown
from falcon_core.signals.iterations.device_times import Completions
from falcon_core.signals.iterations.segmenter import Iteration, IterationTracker
from falcon_core.signals.rank.hang_deadline import MINIMUM_DEADLINE_NS, HangDeadline
from falcon_core.signals.rank.lasting_compute import SCATTERED, LastingComputation
from falcon_core.signals.rank.pulse_means import PulseMeans, waits_ns
from falcon_core.signals.rank.saved_state import RankMemory, levels
from falcon_core.wire.reporting.messages import RECENT_ITERATIONS, Detection, Onset, RankSignals
from falcon_core.wire.ring import Kind, RecordArray

_HEALTHY_DELAY = 8  # iterations after which one counts as healthy, if no slowdown was found to include it


_REMEMBERED_SAMPLES = 64  # weight of an earlier agent's references
_COMPARED_SAMPLES = 512  # of a healthy level: until then it may be compared with those of peers (``slow_from_start``)


class Track(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's report on its newest iterations in track mode, as medians, ns an iteration: ≤ 1 KiB a rank.

    Where calls return when they are enqueued, the iterations are the newest that were sampled.
    """

    iteration_ns: float
    compute_ns: float | None = None
    healthy_compute_ns: float | None = None
    stall_share: float | None = None
    excess_ns: dict[int, tuple[float, ...]] = {}  # by this process's communicator id: its first call, and the rest


class RankChain:
    """Calls → iterations → compute and wait → onset and relief, for one rank in one generation."""

    def __init__(
        self,
        detection: Detection,
        memory: RankMemory | None = None,
        observe: Callable[[Measured, Slowdown | None], None] | None = None,
        place: int = 0,
    ) -> None:
        """Begin to learn; ``observe`` is called with every iteration, and the slowdown as it is after it.

        Another period restarts the numbers. The ``place`` among its agent's ranks keeps their searches apart.
        """
        self._observe = observe
        self.last_end_ns: int | None = None  # when the newest call returned
        self.shares = Shares()  # of micro-batches
        self._detection = detection
        self._order = CallOrder()
        self._tokenizer = Tokenizer()
        self._memory = memory
        self._place = place
        self._kept: KeptWaits | None = None  # of the even share's calls
        self._tracker = IterationTracker(memory.anchor if memory else None, place)
        self._completions = Completions()
        self._peers = Peers()
        self._completed = False  # completions came, and no call since
        self._hang = HangDeadline(memory.pauses if memory else ())
        self._period_changes = 0
        self._base = 0  # iterations before the tracker's first
        self._newest = 0
        self._reset(memory)

    def _period_changed(self) -> None:
        """Forget what was learned of the period before, or by an earlier agent that did not follow the present one."""
        memory = self._memory
        same = memory is not None and (memory.anchor is None or memory.anchor.period_calls == self.period_calls)
        if self._period_changes or (memory is not None and not same):
            self._base = 0
            self._reset(memory if same else None)
        if same:
            self._memory = None
        self._period_changes = self._tracker.period_changes

    def _follow_anew(self) -> None:
        """Look for the calls of an iteration again, since the rank's share of the micro-batches makes them others.

        The job is as fast as it was, and computation is compared as with even shares: so the levels stay. The numbers
        go on, as those of ranks whose share is what it was.
        """
        self._tracker, self._period_changes, self._base = IterationTracker(None, self._place), 0, self._newest
        self._memory = None
        self._kept = kept(self._recent, self._measurer.waits) or self._kept
        self._reset(levels(self._detector, self._healthy_compute))

    def _reset(self, memory: RankMemory | None) -> None:
        """Begin to learn, from what an earlier agent knew."""
        known = None
        if memory is not None and memory.healthy_ns is not None:
            known = Reference(math.log(memory.healthy_ns), memory.noise, samples=_REMEMBERED_SAMPLES)
        # What an earlier agent learned counts, but with few samples: the job may have changed since then.
        self._detector = ChangeDetector(
            verify_percent=self._detection.verify_percent,
            consecutive=self._detection.consecutive_iterations,
            known=known,
            settled=memory.settled if memory is not None else None,
            pulses=memory.pulse_share if memory is not None else None,
        )
        self._healthy_compute = HealthyComputation()
        self._measurer = (
            Measurer(self.shares, memory.expected, memory.expected_compute) if memory else Measurer(self.shares)
        )
        if memory is not None:
            if memory.anchor is not None:  # without it the iteration numbers restart, and the onset's number is void
                self._detector.slowdown = memory.slowdown
            if memory.healthy_compute_ns:
                reference = Reference(math.log(memory.healthy_compute_ns), memory.compute_noise, _REMEMBERED_SAMPLES)
                self._healthy_compute = HealthyComputation(reference)
        self._best_waits = self._measurer.waits.copied()
        self._recent: deque[Measured] = deque(maxlen=RECENT_ITERATIONS)
        self._sampled: deque[Measured] = deque(maxlen=RECENT_ITERATIONS)  # in device time
        self._means = PulseMeans()
        self._lasting = LastingComputation()
        self._unlearned_samples: deque[Measured] = deque()
        self._completions.forget()
        self._newest = self._base
        self._judged = self._base
        self._unlearned: deque[Measured] = deque()

    def feed(self, records: RecordArray, *, lost: bool = False) -> bool:
        """Take the next records of the ring; True if a slowdown began, grew by another onset, or ended.

        ``lost``: there were records before these that cannot be read any more.
        """
        self._peers.feed(records)
        changed = False
        for number, part in enumerate(self.shares.cut(records)):
            if number:
                self._follow_anew()
            changed = self._feed(part, lost=lost and not number) or changed
        return changed

    def _feed(self, records: RecordArray, *, lost: bool) -> bool:
        """Take records of the same turn of micro-batches."""
        changed = lost and self._take(self._tokenizer.calls(self._order.release()))
        for piece in self._completions.cut(records):
            if self._completed and len(piece) and piece["kind"][0] != Kind.COMPLETED:
                self._completed = False  # all that were written in one go have come, in however many reads
                self._take_samples()
            changed = self._take(self._tokenizer.calls(self._order.arrange(piece))) or changed
            self._completed = self._completions.feed(piece) or self._completed
        return changed

    def _take(self, calls: Calls) -> bool:
        if not len(calls):
            return False
        self.last_end_ns = max(self.last_end_ns or 0, int(calls.ends_ns.max()))
        changed = False
        while len(calls):
            count = self._tracker.append(calls)
            known_from: int | None = None  # silences count from here on: a cycle is known
            # Calls are taken up to each iteration's end, since what is known of the cycle may change there.
            while hidden := self._tracker.hidden:
                known = self._tracker.cycle_calls is not None
                if known and known_from is None:
                    known_from = count - hidden
                elif not known and known_from is not None:
                    self._hang.feed(calls.cut(known_from, count - hidden))
                    known_from = None
                changed = self._take_iterations(self._tracker.advance()) or changed
            if known_from is not None:
                self._hang.feed(calls.cut(known_from, count))
            calls = calls.cut(count, len(calls))
        return changed

    def _take_iterations(self, iterations: list[Iteration]) -> bool:
        """Take the iterations that a decision has completed."""
        had = self._detector.first_slow
        if self._tracker.period_changes != self._period_changes:
            self._period_changed()
        if self._base:
            iterations = [msgspec.structs.replace(each, number=each.number + self._base) for each in iterations]
        for iteration, attributed in zip(iterations, attribute(iterations), strict=True):
            measured = self._measure(iteration, attributed)
            if self._observe is not None:
                self._observe(measured, self._detector.slowdown)
        return had != self._detector.first_slow

    def _measure(self, iteration: Iteration, attributed: Attributed) -> Measured:
        if self._kept is not None and self._measurer.waits.healthy is None and not iteration.interrupted:
            # With the even share its calls are back, too: their healthy times need not be learned again.
            self._measurer.waits = self._kept.of(iteration) or self._measurer.waits
        measured = self._measurer.measure(iteration, attributed)
        self._recent.append(measured)
        self._newest = iteration.number
        if iteration.interrupted:
            return measured
        self._means.add(measured)
        self._lasting.add(measured)
        if measured.compute_ns is None:
            self._completions.wait_for(iteration)
            self._take_samples()
        # The time to expect for these bytes may still be unknown; such iterations are judged later.
        if self._measurer.is_settled(iteration):
            self._judge(measured)
        elif settled := {each.iteration.number: each for each in self._measurer.settle(iteration)}:
            self._recent = deque((settled.get(old.iteration.number, old) for old in self._recent), RECENT_ITERATIONS)
            for each in settled.values():
                if each.iteration.number > self._judged:
                    self._judge(each)
        return measured

    def _judge(self, measured: Measured) -> None:
        """Look for a change with this iteration, and learn from an earlier one if there is none."""
        self._judged = measured.iteration.number
        was_slow, had_level = self._detector.slowdown is not None, self._detector.reference is not None
        self._detector.feed(self._judged, measured.iteration.start_ns, measured.iteration_ns)
        if self._detector.slowdown is not None:
            if self._detector.slowdown.gradual and not was_slow:
                self._return_to_best()
            self._unlearned.clear()
            self._unlearned_samples.clear()
            return
        # Learned only after a delay: the detector may still find that a slowdown began before this iteration. All that
        # its first level rests on is healthy.
        self._unlearned.append(measured)
        if len(self._unlearned) > _HEALTHY_DELAY or not had_level:
            self._learn(self._unlearned.popleft())

    def _take_samples(self) -> None:
        """Take the iterations whose device times have come."""
        for iteration in self._completions.resolved():
            measured = self._measurer.measure(iteration)
            self._sampled.append(measured)
            self._means.add_sample(measured)
            self._lasting.add_sample(measured)
            if self._detector.slowdown is None and self._measurer.is_settled(iteration):
                self._unlearned_samples.append(measured)
        slope = self._measurer.slopes[1]
        while self._unlearned_samples and self._is_settled(self._unlearned_samples[0]):
            self._learn(self._unlearned_samples.popleft())
        if self._measurer.slopes[1] is not slope:  # the next sample comes after many iterations: all shall be alike
            again = [self._measurer.measure(each.iteration) for each in self._sampled]
            self._sampled = deque(again, maxlen=RECENT_ITERATIONS)

    def _is_settled(self, sample: Measured) -> bool:
        """Check whether a slowdown that includes the sample would have been found by now."""
        return self._detector.reference is None or self._newest - sample.iteration.number > _HEALTHY_DELAY

    def _return_to_best(self) -> None:
        """Take for healthy what was healthy at the job's best: a slow degradation has taught all that follows."""
        self._measurer.waits = self._best_waits.copied()
        self._healthy_compute.return_to_best()

    def _learn(self, healthy: Measured) -> None:
        if healthy.moved:
            return  # the iteration may be as short as ever, with a rank that is slow
        self._measurer.learn(healthy)
        self._healthy_compute.learn(healthy, self._measurer)
        # A slow degradation moves what counts as healthy along. What was learned at the best level is kept for that
        # case.
        if self._detector.at_best:
            self._best_waits = self._measurer.waits.copied()
            self._healthy_compute.at_best()

    def measured_since(self, number: int, *, sampled: bool = False) -> list[Measured]:
        """Return the newest iterations beyond a number, ``RECENT_ITERATIONS`` at most; all if numbers began again.

        ``sampled``: those whose durations were measured, where calls return when they are enqueued.
        """
        newest = list((self._sampled if sampled else None) or self._recent)
        if newest and newest[-1].iteration.number < number:
            number = 0
        return [each for each in newest if each.iteration.number > number]

    @property
    def newest_whole(self) -> Iteration | None:
        """Return the newest complete iteration; None if it was interrupted, or if the calls are not regular now."""
        newest = self._recent[-1].iteration if self._recent else None
        return None if newest is None or newest.interrupted or not self._tracker.regular else newest

    @property
    def at_start(self) -> bool:
        """Return whether the rank stands between two iterations."""
        return self._tracker.at_start

    @property
    def slowdown(self) -> Slowdown | None:
        return self._detector.slowdown

    @property
    def iterations(self) -> int:
        """Return the number of complete iterations."""
        return self._base + self._tracker.iterations

    def is_silent(self, now_ns: int) -> bool:
        """Check whether no call has returned for longer than the deadline of a hang, by the clock of the calls."""
        if self.last_end_ns is None or now_ns - self.last_end_ns <= MINIMUM_DEADLINE_NS:
            return False
        deadline_ns = self._hang_deadline_ns()
        return deadline_ns is not None and now_ns - self.last_end_ns > deadline_ns

    def may_matter(self, now_ns: int) -> bool:
        """Check whether a report could show that the rank is not well (``falcon_agent.reporting.schedule``)."""
        if self._detector.slowdown is not None or self.is_silent(now_ns):
            return True
        newest, slow_ns = self._sampled or self._recent, self._slow_compute_ns()
        return bool(newest) and slow_ns is not None and (newest[-1].compute_ns or 0) > slow_ns

    @property
    def computes_longer(self) -> bool:
        """Check whether the job is slow, and this rank's own computation takes longer than it did."""
        slow_ns = self._slow_compute_ns()
        computes = self._computes(self._newest_window())[-self._detection.consecutive_iterations :]
        slow = self._detector.slowdown is not None and slow_ns is not None and bool(computes)
        return slow and statistics.median(computes) > (slow_ns or 0)

    @property
    def learns_compute(self) -> bool:
        """Return whether the rank's cycle is known, and its healthy computation is not."""
        return self._tracker.cycle_calls is not None and self._healthy_compute.level_ns is None

    @property
    def scatters(self) -> bool:
        """Return whether a device times the computation, and it differs much from one iteration to the next."""
        reference = self._healthy_compute.reference
        return bool(self._sampled) and reference is not None and reference.noise >= SCATTERED

    def _slow_compute_ns(self) -> float | None:
        """Return the computation [ns] that is slow; None while the healthy level is learned."""
        healthy_ns = self._healthy_compute.level_ns
        return None if healthy_ns is None else healthy_ns * (1 + self._detection.verify_percent / 100)

    def _newest_window(self) -> list[Measured]:
        """Return the newest C iterations of those whose durations are measured."""
        return list(self._sampled or self._recent)[-self._detection.consecutive_iterations :]

    @property
    def _is_new(self) -> bool:
        """Return whether the healthy level is known, and is one of those that the operator compares as they are new."""
        reference = self._healthy_compute.reference
        return reference is not None and reference.samples <= _COMPARED_SAMPLES

    def _hang_deadline_ns(self) -> int | None:
        times = [measured.iteration.duration_ns for measured in self._recent]
        return self._hang.deadline_ns(statistics.fmean(times), self._detection.hang_factor) if times else None

    @property
    def healthy_ns(self) -> int | None:
        """Return the healthy iteration time [ns]; None while it is being learned."""
        return self._detector.healthy_ns

    @property
    def period_calls(self) -> int | None:
        """Return the number of calls in the cycle that is followed; None while no cycle is followed."""
        return self._tracker.cycle_calls

    @property
    def traffic_calls(self) -> int | None:
        """Return the number of calls in the cycle whose traffic is reported; None where it may be a micro-batch."""
        return self._tracker.traffic_calls

    def memory(self) -> RankMemory:
        """Return the state that the next agent needs."""
        anchor = self._tracker.position
        expected, expected_compute = self._measurer.slopes
        return msgspec.structs.replace(
            levels(self._detector, self._healthy_compute),
            anchor=anchor and msgspec.structs.replace(anchor, iteration=anchor.iteration + self._base),
            expected=expected,
            expected_compute=expected_compute,
            slowdown=self._detector.slowdown,
            pauses=self._hang.pauses,
            settled=self._detector.settled,
            pulse_share=self._detector.pulse_share,
        )

    def track(self) -> Track | None:
        """Return the newest iterations in a few numbers; None before the first."""
        newest = self._newest_window()
        if not newest:
            return None
        computes = self._computes(newest)[-len(newest) :]
        return Track(
            iteration_ns=statistics.median(self._times(newest)[-len(newest) :]),
            compute_ns=statistics.median(computes) if computes else None,
            healthy_compute_ns=self._healthy_compute.level_ns,
            stall_share=self._stall_share(),
            excess_ns=median_excess(newest, self._tokenizer.comms),
        )

    def _times(self, newest: Sequence[Measured]) -> list[int]:
        """Return the times [ns] of these iterations; while pulses last, the newest means, once there are enough."""
        pulses = self._pulses
        means = [] if pulses is None else self._means.iteration_ns(pulses)
        return means or [each.iteration_ns for each in newest]

    def _computes(self, newest: Sequence[Measured]) -> list[int]:
        """Return what is known of these iterations' computation [ns]; while pulses last, the newest means, if any."""
        pulses = self._pulses
        means = [] if pulses is None else self._means.compute_ns(pulses)
        # Few samples of a device are no substitute: pulses of an equal distance may hit all of them.
        if pulses is not None and (means or self._sampled):
            return means
        return newest_known(each.compute_ns for each in newest)

    def _waits(self, newest: Sequence[Measured]) -> list[int]:
        """Return what is known of the waits [ns] in these iterations; while pulses last, the newest means."""
        pulses, computes_ns = self._pulses, self._healthy_compute.level_ns
        if pulses is None:
            return newest_known(each.wait_ns for each in newest)
        if computes_ns is None:
            return []
        return waits_ns(self._times(newest), self._computes(newest), max(0, pulses.before_ns - computes_ns))

    @property
    def _pulses(self) -> Slowdown | None:
        """Return the slowdown if it comes in pulses."""
        slowdown = self._detector.slowdown
        return slowdown if slowdown is not None and slowdown.window else None

    def _lasting_compute_ns(self) -> int | None:
        """Return the median computation [ns] of many iterations; None where few say as much, and while pulses last."""
        reference = self._healthy_compute.reference
        return None if reference is None or self._pulses is not None else self._lasting.median_ns(reference.noise)

    def _since_onset(self) -> tuple[int | None, float | None]:
        """Return the median computation [ns] since the onset, and its error; None as in ``_lasting_compute_ns``."""
        slowdown = self._detector.slowdown
        if slowdown is None or self._pulses is not None:
            return None, None
        known = self._lasting.since(slowdown.first_iteration)
        if known is None:
            return None, None
        compute_ns, count = known
        return compute_ns, self._healthy_compute.cautious_error(count, self._detection.consecutive_iterations)

    def _stall_share(self) -> float | None:
        """Return the median of ``Excess.stall_share`` over the newest iterations; None where it is not known.

        None while pulses last: a median shows the iterations between them.
        """
        if self._pulses is not None:
            return None
        excesses = [each.excess for each in self._newest_window() if each.excess is not None]
        stalls = [share for each in excesses if (share := each.stall_share) is not None]
        return statistics.median(stalls) if stalls else None

    def _longest_growth(self) -> float | None:
        """Return the median of ``Excess.longest_growth`` over the newest iterations; None where it is not known."""
        if self._pulses is not None:
            return None
        excesses = [each.excess for each in self._newest_window() if each.excess is not None]
        growths = [growth for each in excesses if (growth := each.longest_growth) is not None]
        return statistics.median(growths) if growths else None

    def lasting_excess(self) -> dict[int, tuple[float, ...]]:
        """Return each communicator's excess as in ``track``, but the least over the newest windows of C iterations.

        So only an excess that lasted is in the result. Empty until the windows are full (of sampled iterations, where
        iterations are sampled), and where half of a window is not known.
        """
        width = self._detection.consecutive_iterations
        return least_excess(list(self._sampled or self._recent), width, self._tokenizer.comms)

    def healthy_calls(self) -> dict[int, tuple[float, ...]]:
        """Return the healthy time [ns] of the calls of an iteration by communicator (``call_excess.healthy_calls``)."""
        return healthy_calls(self._newest_window(), self._tokenizer.comms)

    def signals(self, rank: int, unix_offset_ns: int) -> RankSignals:
        """Make the report, without the counters that the ring does not hold. Wall = ring clock + ``unix_offset_ns``."""
        recent = list(self._recent)
        # Where calls return when they are enqueued, only sampled device times show computation and waits.
        attributed = list(self._sampled) or recent
        # An interrupted iteration contains calls that are not its own, so it does not show the kind of work.
        whole = next((each.iteration for each in reversed(recent) if not each.iteration.interrupted), None)
        slowdown = self._detector.slowdown
        sizes_vary = self._tracker.varying is not None
        slow_compute_ns, slow_compute_error = self._since_onset()
        return RankSignals(
            rank=rank,
            tracking="Undetermined" if self._tracker.cycle_calls is None else "Tracking",
            iterations=self.iterations,
            period_calls=self._tracker.period_calls,
            last_call_unix_ns=None if self.last_end_ns is None else self.last_end_ns + unix_offset_ns,
            iteration_ns=self._times(recent),
            compute_ns=self._computes(attributed),
            wait_ns=self._waits(attributed),
            healthy_iteration_ns=self._detector.healthy_ns,
            healthy_noise=None if (reference := self._detector.reference) is None else reference.noise,
            healthy_compute_ns=self._healthy_compute.level_ns,
            healthy_compute_error=self._healthy_compute.error(self._detection.consecutive_iterations),
            lasting_compute_ns=self._lasting_compute_ns(),
            slow_compute_ns=slow_compute_ns,
            slow_compute_error=slow_compute_error,
            longest_share=self._measurer.waits.longest_share if self._is_new else None,
            first_stretch=self._measurer.waits.first_stretch if self._is_new else None,
            longest_growth=None if slowdown is None else self._longest_growth(),
            onset=None if slowdown is None else onset_of(slowdown, unix_offset_ns),
            hang_deadline_ns=self._hang_deadline_ns(),
            work=work_of(whole, self._tracker.varying, self._measurer.slopes[1], self._peers),
            size_class=None if sizes_vary else usual_size([measured.iteration for measured in recent]),
            load=statistics.median(measured.load for measured in recent) if sizes_vary and recent else None,
            stall_share=None if slowdown is None else self._stall_share(),
            micro=self.shares.reported(median_micro_ns(self._newest_window())),
        )


def onset_of(slowdown: Slowdown, unix_offset_ns: int) -> Onset:
    """Return the report; wall = ring clock + ``unix_offset_ns``."""
    return Onset(
        iteration=slowdown.first_iteration,
        unix_ns=slowdown.start_ns + unix_offset_ns,
        reported_iteration=slowdown.reported_iteration,
        before_ns=slowdown.before_ns,
        after_ns=slowdown.after_ns,
    )
