"""Put faults into jobs: each says which rank and which metrics a verdict may name, and when it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from evaluation.anomalies.healthy_jobs import HEALTHY_JOBS
from evaluation.anomalies.jobs import HOUR, MINUTE, Drivers, drivers, random_of

Array = npt.NDArray[Any]

BEFORE: Final = (25 * MINUTE, 50 * MINUTE)  # the fault begins in between
AFTER: Final = 25 * MINUTE  # how long it is watched
# What a faulty job does otherwise: kinds in which a rank by itself is not odd for long.
SURROUNDINGS: Final = (
    "plain",
    "batches of variable length",
    "rank 0 saves, unmarked",
    "stages of a pipeline",
    "garbage collections",
    "evaluations, unmarked",
    "other pods on the nodes",
    "windows that get lost",
    "each rank prints its own loss",
)


class Case(msgspec.Struct, eq=False):
    """A job, and what is wrong with it. ``rank`` None: nothing, or the job as a whole."""

    name: str
    drivers: Drivers
    begin: int | None  # window; None: healthy
    rank: int | None
    metrics: tuple[str, ...]  # that a verdict may name first


class Spot(msgspec.Struct, eq=False):
    """Where a fault is: its rank, its windows from 0 on, and how far into it each of them is."""

    rank: int
    on: npt.NDArray[np.bool_]  # [window]
    minutes: Array  # since it began [window]


def _thief(of: Drivers, at: Spot) -> None:
    of.pressure[at.rank] += 0.4 * at.on
    of.slow[at.rank] *= 1 + of.random.uniform(0.3, 1.0) * at.on


def _quota(of: Drivers, at: Spot) -> None:
    of.throttled[at.rank] += of.random.uniform(0.2, 0.6) * at.on
    of.slow[at.rank] *= 1 + 0.8 * at.on


def _leak(of: Drivers, at: Spot) -> None:
    of.memory[at.rank] += of.random.uniform(1.5, 3.0) * at.minutes


def _volume(of: Drivers, at: Spot) -> None:
    of.disk[at.rank] += of.random.uniform(0.01, 0.03) * at.minutes


def _files(of: Drivers, at: Spot) -> None:
    of.files[at.rank] += of.random.uniform(10, 30) * at.minutes


def _threads(of: Drivers, at: Spot) -> None:
    of.threads[at.rank] += of.random.uniform(5, 20) * at.minutes


def _packets(of: Drivers, at: Spot) -> None:
    of.retransmits[at.rank] += of.random.uniform(15, 60) * at.on
    of.link[at.rank] += 0.2 * at.on


def _warm(of: Drivers, at: Spot) -> None:
    of.ambient[at.rank] += 15 * at.on
    of.clock[at.rank] *= 1 - of.random.uniform(0.15, 0.4) * at.on
    of.slow[at.rank] *= 1 + 0.3 * at.on


def _cooling(of: Drivers, at: Spot) -> None:
    of.ambient[at.rank] += np.minimum(of.random.uniform(1.0, 2.0) * at.minutes, 25)


def _ecc(of: Drivers, at: Spot) -> None:
    of.ecc[at.rank] += of.random.poisson(5, of.windows) * at.on


def _lines(of: Drivers, at: Spot) -> None:
    of.error_lines[at.rank] += of.random.poisson(of.random.uniform(0.5, 5), of.windows) * at.on


def _loader(of: Drivers, at: Spot) -> None:
    of.slow[at.rank] *= 1 + of.random.uniform(1, 4) * at.on
    of.io_pressure[at.rank] += 0.5 * at.on


def _stopped(of: Drivers, at: Spot) -> None:
    """Stop one rank: the others spin in their transfers, and no iteration ends."""
    gone = np.zeros((of.ranks, of.windows), np.bool_)
    gone[:] = at.on
    for name in ("computation", "iteration", "wait", "loss"):
        of.missing[name] = of.missing.get(name, np.zeros_like(gone)) | gone
    of.cpu[at.rank] *= np.where(at.on, 0.0, 1.0)
    of.clock[at.rank] *= np.where(at.on, 0.4, 1.0)


def _gone(of: Drivers, at: Spot) -> None:
    for name in ("gpu_temperature", "gpu_power", "gpu_clock"):
        of.missing[name] = np.zeros((of.ranks, of.windows), np.bool_)
        of.missing[name][at.rank] = at.on


def _swapping(of: Drivers, at: Spot) -> None:
    of.memory_pressure[at.rank] += of.random.uniform(0.2, 0.6) * at.on
    of.slow[at.rank] *= 1 + 0.5 * at.on


def _replica(of: Drivers, at: Spot) -> None:
    of.loss[at.rank] *= 1 + of.random.uniform(0.1, 0.5) * at.on


def _spike(of: Drivers, at: Spot) -> None:
    of.loss *= 1 + of.random.uniform(0.5, 2.0) * at.on


def _stall(of: Drivers, at: Spot) -> None:
    begin = int(np.argmax(at.on))
    of.loss[:, begin:] = of.loss[:, begin : begin + 1]


def _busy(of: Drivers, at: Spot) -> None:
    of.cpu[at.rank] *= 1 + of.random.uniform(1.5, 4) * at.on


_TIMES: Final = ("computation", "wait", "iteration", "gpu_activity", "gpu_power", "cpu")
FAULTS: Final[dict[str, tuple[Callable[[Drivers, Spot], None], tuple[str, ...], bool]]] = {
    # how it shows, what a verdict may name first, whether it is of one rank
    "a CPU thief": (_thief, ("cpu_pressure",), True),
    "a CPU quota": (_quota, ("cpu_throttled",), True),
    "a memory leak": (_leak, ("memory",), True),
    "a volume that fills": (_volume, ("disk",), True),
    "files that stay open": (_files, ("open_files",), True),
    "threads that stay": (_threads, ("threads",), True),
    "lost packets": (_packets, ("retransmits",), True),
    "a GPU that is too warm and slows down": (_warm, ("gpu_clock", "gpu_temperature", "gpu_power"), True),
    "a fan that fails": (_cooling, ("gpu_temperature",), True),
    "memory errors of a GPU": (_ecc, ("gpu_ecc",), True),
    "errors logged without end": (_lines, ("error_lines",), True),
    "a data loader that stalls": (_loader, ("io_pressure", *_TIMES), True),
    "a stopped rank": (_stopped, ("cpu", "gpu_clock", "gpu_power", "gpu_activity"), True),
    "telemetry that falls silent": (_gone, ("gpu_temperature", "gpu_power", "gpu_clock"), True),
    "a rank that swaps": (_swapping, ("memory_pressure",), True),
    "a process that spins": (_busy, ("cpu",), True),
    "a replica with another loss": (_replica, ("loss",), True),
    "a loss that jumps": (_spike, ("loss",), False),
    "a loss that stands still": (_stall, ("loss",), False),
}


# What has no strength: it is there or not.
WHOLE: Final = ("a stopped rank", "telemetry that falls silent", "a loss that stands still")


def faulty(name: str, seed: int, strength: float = 1.0) -> Case:
    """Return a job with this fault, which begins in it after 25 to 50 minutes. ``strength``: share of its effect."""
    random = random_of("fault", name, seed)
    surroundings = SURROUNDINGS[int(random.integers(len(SURROUNDINGS)))]
    ranks = int(random.choice([3, 4, 8, 8, 16]))
    begin = int(random.uniform(*BEFORE))
    found = drivers(random, ranks, begin + AFTER)
    HEALTHY_JOBS[surroundings](found)
    times = np.arange(found.windows)
    rank = int(random.integers(ranks))
    put, metrics, of_rank = FAULTS[name]
    before = {field: value.copy() for field, value in _numbers(found).items()}
    put(found, Spot(rank, times >= begin, np.maximum(times - begin, 0) / MINUTE))
    if strength != 1.0:
        for field, value in _numbers(found).items():
            setattr(found, field, before[field] + strength * (value - before[field]))
    return Case(f"{name}, {surroundings}", found, begin, rank if of_rank else None, metrics)


def _numbers(of: Drivers) -> dict[str, Array]:
    fields = msgspec.structs.asdict(of)
    return {name: value for name, value in fields.items() if isinstance(value, np.ndarray) and value.dtype == float}


def without_fault(kind: str, seed: int) -> Case:
    """Return a healthy job of the same length, or longer."""
    return Case(kind, _healthy(kind, seed), None, None, ())


def _healthy(kind: str, seed: int) -> Drivers:
    random = random_of("healthy case", kind, seed)
    ranks = 2 if kind == "two ranks" else int(random.choice([3, 4, 8, 8, 16]))
    found = drivers(random, ranks, 2 * HOUR)
    HEALTHY_JOBS[kind](found)
    return found
