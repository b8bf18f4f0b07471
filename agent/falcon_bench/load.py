"""Do one kind of work on all devices at the same time, as training does, and take each device's rate."""

import operator
import statistics
import threading
import time
from collections.abc import Callable  # noqa: F401  in comments

BLOCK_SECONDS = 0.005  # of work between two looks at the clock: waiting for a device costs some microseconds
LEAST_BLOCKS = 2  # of a turn
TURNS = 5  # of each kind
HEATING_TURNS = 2  # the first of them: the devices only heat
WINDOW_SECONDS = 0.1  # a period of a CPU quota: a shorter window could miss that it stops the work
LEAST_WINDOWS = 4


class Work:
    """One kind of work on one device.

    amount: what one repetition does, in the unit of the rate. repeat: does it so many times, and waits for the end.
    check: says what is wrong with the result; empty for nothing.
    """

    def __init__(self, amount, repeat, check=lambda: ""):
        # type: (float, Callable[[int], None], Callable[[], str]) -> None
        self.amount = amount
        self.repeat = repeat
        self.check = check


class Rate:
    """What a device did: its steady rate, the spread of the rate over time, and what was wrong with the result.

    steady: the median of the rates of windows. A device that is slow most of the time shows it; what disturbs a machine
    for a moment does not. Of single blocks it would be too high: a quota stops some, and leaves others whole.
    spread: interquartile range of the windows ÷ their median; 0 where there are too few of them.
    """

    def __init__(self, windows, problem):  # type: (list[float], str) -> None
        ordered = sorted(windows)
        quarter = len(ordered) // 4
        self.steady = statistics.median(ordered)
        self.spread = 0.0
        if len(ordered) >= LEAST_WINDOWS:
            self.spread = (ordered[-1 - quarter] - ordered[quarter]) / self.steady
        self.problem = problem


def measure(kinds, seconds):  # type: (dict[str, list[Work]], dict[str, float]) -> dict[str, list[Rate]]
    """Do the works of each kind for about so many seconds, one a device at the same time; return a rate for each.

    The kinds take turns, so that no kind is measured in one short time alone, when something may have disturbed it. In
    the first turns the devices only heat: a clock that falls under load shows in the later ones. Raises what a work
    raises.
    """
    windows = {kind: [[] for _ in works] for kind, works in kinds.items()}  # type: dict[str, list[list[float]]]
    for turn in range(TURNS):
        for kind, works in kinds.items():
            found = _turn(works, seconds[kind] / TURNS)
            if turn >= HEATING_TURNS:
                windows[kind] = list(map(operator.add, windows[kind], found))
    return {kind: list(map(_judged, works, windows[kind])) for kind, works in kinds.items()}


def _judged(work, windows):  # type: (Work, list[float]) -> Rate
    return Rate(windows, work.check())


def _turn(works, seconds):  # type: (list[Work], float) -> list[list[float]]
    """Return the rates of each device's windows in one turn."""
    found = [None] * len(works)  # type: list[list[float] | Exception | None]
    # All devices begin at the same moment, as in training, where they share power and memory.
    together = threading.Barrier(len(works))

    def run(place):  # type: (int) -> None
        try:
            found[place] = _rates(works[place], seconds, together)
        except Exception as error:  # the caller's thread raises it
            together.abort()
            found[place] = error

    threads = [threading.Thread(target=run, args=(place,), daemon=True) for place in range(len(works))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failures = [each for each in found if isinstance(each, Exception)]
    if failures:  # the others only wait for the device that failed
        raise min(failures, key=lambda error: isinstance(error, threading.BrokenBarrierError))
    return [each for each in found if isinstance(each, list)]


def _rates(work, seconds, together):  # type: (Work, float, threading.Barrier) -> list[float]
    work.repeat(1)  # libraries start their machinery at the first call
    repeats = max(1, int(BLOCK_SECONDS / max(1e-6, _seconds(work, 1))))
    together.wait()
    began = time.perf_counter()
    blocks = []  # type: list[float]
    while len(blocks) < LEAST_BLOCKS or time.perf_counter() - began < seconds:
        blocks.append(_seconds(work, repeats))
    return [_mean(repeats * work.amount, window) for window in _windows(blocks)]


def _mean(done, blocks):  # type: (float, list[float]) -> float
    return done * len(blocks) / sum(blocks)


def _windows(blocks):  # type: (list[float]) -> list[list[float]]
    """Return runs of blocks of WINDOW_SECONDS at least; what is left at the end is in none, or else in the only one."""
    windows, newest = [], []  # type: list[list[float]], list[float]
    for block in blocks:
        newest.append(block)
        if sum(newest) >= WINDOW_SECONDS:
            windows.append(newest)
            newest = []
    return windows or [newest]


def _seconds(work, repeats):  # type: (Work, int) -> float
    began = time.perf_counter()
    work.repeat(repeats)
    return time.perf_counter() - began
