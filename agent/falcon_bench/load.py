"""Do one kind of work on all devices at the same time, as training does, and take each device's rate."""

import statistics
import threading
import time
from collections.abc import Callable  # noqa: F401  in comments

BLOCK_SECONDS = 0.005  # of work between two looks at the clock: waiting for a device costs some microseconds
LEAST_BLOCKS = 3
WINDOW_SECONDS = 0.1  # of the spread: a period of a CPU quota
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
    """What a device did: the mean rate, the spread of the rate over time, and what was wrong with the result.

    The mean, not the best: whatever takes a device away stops some blocks, and leaves others undisturbed.
    """

    def __init__(self, mean, spread, problem):  # type: (float, float, str) -> None
        self.mean = mean
        self.spread = spread  # interquartile range of windows ÷ their median; 0 where there are too few of them
        self.problem = problem


def measure(works, seconds):  # type: (list[Work], float) -> list[Rate]
    """Do the works at the same time, one a device, for about so many seconds; return a rate for each.

    The first half of the time only heats the devices: a clock that falls under load shows in the second. Raises what a
    work raises.
    """
    found = [None] * len(works)  # type: list[Rate | Exception | None]
    together = threading.Barrier(len(works))

    def run(place):  # type: (int) -> None
        try:
            found[place] = _rate(works[place], seconds, together)
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
    return [each for each in found if isinstance(each, Rate)]


def _rate(work, seconds, together):  # type: (Work, float, threading.Barrier) -> Rate
    work.repeat(1)  # libraries start their machinery at the first call
    repeats = max(1, int(BLOCK_SECONDS / max(1e-6, _seconds(work, 1))))
    together.wait()
    began = time.perf_counter()
    blocks = []  # type: list[float]
    heated = 0
    while len(blocks) - heated < LEAST_BLOCKS or time.perf_counter() - began < seconds:
        blocks.append(_seconds(work, repeats))
        if time.perf_counter() - began < seconds / 2:
            heated = len(blocks)
    done, counted = repeats * work.amount, blocks[heated:]
    return Rate(_mean(done, counted), _spread([_mean(done, each) for each in _windows(counted)]), work.check())


def _mean(done, blocks):  # type: (float, list[float]) -> float
    return done * len(blocks) / sum(blocks)


def _windows(blocks):  # type: (list[float]) -> list[list[float]]
    """Return runs of blocks, each of WINDOW_SECONDS at least; what is left at the end is in none."""
    windows, newest = [], []  # type: list[list[float]], list[float]
    for block in blocks:
        newest.append(block)
        if sum(newest) >= WINDOW_SECONDS:
            windows.append(newest)
            newest = []
    return windows


def _spread(rates):  # type: (list[float]) -> float
    if len(rates) < LEAST_WINDOWS:
        return 0.0
    ordered = sorted(rates)
    quarter = len(ordered) // 4
    return (ordered[-1 - quarter] - ordered[quarter]) / statistics.median(ordered)


def _seconds(work, repeats):  # type: (Work, int) -> float
    began = time.perf_counter()
    work.repeat(repeats)
    return time.perf_counter() - began
