"""Make the series of whole simulated jobs: all metrics of all ranks, in windows of ten seconds.

A job is drawn from its drivers: what each rank computes, uses and prints. What follows from them is derived as on a
cluster of synchronous training: an iteration takes as long as its slowest rank, and the others wait for it.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.signal import lfilter

from falcon_anomaly.series.board import WINDOW_SECONDS, Board

Array = npt.NDArray[Any]

MINUTE: Final = 6  # windows
HOUR: Final = 360
DAY: Final = 8640


def random_of(*names: object) -> np.random.Generator:
    """Return a generator that is seeded by names, so that figures are the same everywhere."""
    return np.random.default_rng(zlib.crc32(repr(names).encode()))


class Drivers(msgspec.Struct, eq=False):
    """What a job's ranks do, before what follows from it. Shapes: [rank, window], or [1, window] for all ranks."""

    random: np.random.Generator
    ranks: int
    windows: int
    length: Array  # of the batch, relative
    slow: Array  # computation ÷ what it would be
    link: Array  # seconds that transfers take
    active: Array  # 1 trains, 0 rests
    training: npt.NDArray[np.bool_]  # [window] as the agents mark it
    memory: Array  # GiB
    disk: Array  # share of the volume
    pressure: Array  # of the CPU
    throttled: Array
    memory_pressure: Array
    io_pressure: Array
    retransmits: Array  # a second
    ecc: Array
    files: Array
    threads: Array
    cpu: Array  # cores for one second of computation
    clock: Array  # MHz
    ambient: Array  # degrees
    error_lines: Array
    loss: Array
    arrived: npt.NDArray[np.bool_]  # [rank, window]
    missing: dict[str, npt.NDArray[np.bool_]]  # of single metrics


def wandering(random: np.random.Generator, shape: tuple[int, ...], deviation: float, windows: float) -> Array:
    """Return series that return to zero with the time constant ``windows`` [..., window]."""
    keep = float(np.exp(-1.0 / windows))
    pushes = random.normal(0, deviation * np.sqrt(1 - keep * keep), shape)
    pushes[..., 0] = random.normal(0, deviation, shape[:-1])
    return np.asarray(lfilter([1.0], [1.0, -keep], pushes, axis=-1))


def drivers(random: np.random.Generator, ranks: int, windows: int) -> Drivers:
    """Return the drivers of a plain data-parallel job, a quarter of an hour after its start."""
    shape = (ranks, windows)
    one, none = np.ones(shape), np.zeros(shape)
    times = np.arange(windows)
    fall = 1.0 + 3.0 * np.exp(-times / (2 * HOUR))
    return Drivers(
        random=random,
        ranks=ranks,
        windows=windows,
        length=np.ones((1, windows)),
        slow=one * random.uniform(0.98, 1.02, (ranks, 1)),
        link=0.05 * one,
        active=np.ones((1, windows)),
        training=np.ones(windows, np.bool_),
        memory=one * random.uniform(38, 42, (ranks, 1)),
        disk=one * random.uniform(0.2, 0.6),
        pressure=np.abs(random.normal(0, 0.01, shape)),
        throttled=none.copy(),
        memory_pressure=none.copy(),
        io_pressure=np.abs(random.normal(0, 0.01, shape)),
        retransmits=random.gamma(1.0, 0.2, shape),
        ecc=none.copy(),
        files=one * random.integers(80, 120),
        threads=one * random.integers(40, 80),
        cpu=one * 4.0,
        clock=1700 * one + random.normal(0, 8, shape),
        ambient=random.uniform(22, 30, (ranks, 1)) * one,
        error_lines=random.poisson(0.002, shape).astype(float),
        loss=(fall + random.normal(0, 0.03, windows))[None] * one,
        arrived=np.ones(shape, np.bool_),
        missing={},
    )


def series(of: Drivers) -> dict[str, Array]:
    """Return all metrics of a job [rank, window], float32, with NaN where nothing came."""
    random, shape = of.random, (of.ranks, of.windows)

    def noisy(values: Array, share: float) -> Array:
        return values * (1 + random.normal(0, share, shape))

    computation = noisy(0.5 * of.length * of.slow, 0.01)
    iteration = computation.max(axis=0, keepdims=True) + of.link.max(axis=0, keepdims=True)
    busy = of.active * computation / iteration
    rate = of.active / iteration
    resting = np.where(of.active > 0, 1.0, np.nan)
    activity = np.clip(noisy(busy, 0.01), 0, 1)
    power = noisy(100 + 500 * activity * of.clock / 1700, 0.01)
    found = {
        "computation": computation * resting,
        "iteration": noisy(iteration * np.ones(shape), 0.003) * resting,
        "wait": np.maximum(noisy(iteration - computation, 0.05), 0.0) * resting,
        "cpu": noisy(0.2 + of.cpu * busy, 0.03),
        "cpu_pressure": of.pressure,
        "cpu_throttled": of.throttled,
        "memory": of.memory + random.normal(0, 0.1, shape),
        "memory_pressure": of.memory_pressure,
        "io_pressure": of.io_pressure,
        "network_out": noisy(1e9 * rate + 1e3, 0.02) * np.ones(shape),
        "retransmits": of.retransmits,
        "disk": of.disk,
        "open_files": of.files,
        "threads": of.threads,
        "gpu_activity": activity,
        "gpu_clock": of.clock,
        "gpu_temperature": of.ambient + 40 * (power - 100) / 500 + random.normal(0, 0.5, shape),
        "gpu_power": power,
        "gpu_ecc": of.ecc,
        "error_lines": of.error_lines,
        "loss": of.loss * resting,
    }
    for name, gone in of.missing.items():
        found[name] = np.where(gone, np.nan, found[name])
    return {name: np.where(of.arrived, values, np.nan).astype(np.float32) for name, values in found.items()}


class Recording(Board):
    """A board that plays series from arrays: what it shows is a view, and a look costs no copy."""

    def __init__(self, found: dict[str, Array], training: npt.NDArray[np.bool_]) -> None:
        ranks, windows = next(iter(found.values())).shape
        super().__init__(ranks)
        blank = np.full((ranks, self.windows), np.nan, np.float32)
        self._found = {name: np.concatenate([blank, values], axis=1) for name, values in found.items()}
        self._training = np.concatenate([np.zeros(self.windows, np.bool_), training])
        self._at = 0
        self.most = windows

    @property
    def metrics(self) -> tuple[str, ...]:
        return tuple(self._found)

    @property
    def newest_seconds(self) -> float:
        return self._at * WINDOW_SECONDS

    def show(self, windows: int) -> None:
        """Move on until ``windows`` have been shown."""
        self._at = windows

    def medians(self, metric: str) -> Array:
        return self._found[metric][:, self._at : self._at + self.windows]

    def training(self) -> npt.NDArray[np.bool_]:
        return self._training[self._at : self._at + self.windows]
