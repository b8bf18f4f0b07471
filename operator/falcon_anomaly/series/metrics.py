"""Describe the known metrics: how each is compared, and which difference is small enough to mean nothing."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec


class Role(enum.IntEnum):
    """What a metric says about a rank. A verdict names the first of these that differs: causes before effects."""

    FAULT = 0  # near zero on a healthy machine, whatever the rank's part in the job
    RESOURCE = 1  # what the rank uses, or its machine shows; parts of a job differ in it
    COMPUTATION = 2  # how long the rank's own work takes
    EFFECT = 3  # what follows from the others, and from other ranks: waiting, iterations, activity
    LOSS = 4  # the loss that the ranks print
    NUMBER = 5  # another number that they print, of any sign and scale
    ERRORS = 6  # lines of errors in a window


class Metric(msgspec.Struct, frozen=True):
    """How a metric is compared."""

    role: Role
    floor: float  # a lasting difference below it means nothing: of the logarithm if ``ratio``, else in the own unit
    ratio: bool = True  # ranks are compared by ratios
    worse: int = 0  # 1: only more than the peers' is an anomaly; -1: only less; 0: both
    part_of: str = ""  # the metric of which this one is compared as a share
    slows: bool = False  # it is bad for the time that it takes, and for nothing else


_TABLE: Final[Mapping[str, Metric]] = {
    "cpu_throttled": Metric(Role.FAULT, 0.05, ratio=False, worse=1, slows=True),
    "cpu_pressure": Metric(Role.FAULT, 0.10, ratio=False, worse=1, slows=True),
    "memory_pressure": Metric(Role.FAULT, 0.10, ratio=False, worse=1, slows=True),
    "io_pressure": Metric(Role.FAULT, 0.10, ratio=False, worse=1, slows=True),
    "retransmits": Metric(Role.FAULT, 5.0, ratio=False, worse=1, slows=True),  # a second
    "nic_errors": Metric(Role.FAULT, 1.0, ratio=False, worse=1),
    "nic_congestion": Metric(Role.FAULT, 20.0, ratio=False, worse=1, slows=True),
    "run_delay": Metric(Role.FAULT, 0.20, ratio=False, worse=1, slows=True),  # seconds a second, of all threads
    "gpu_ecc": Metric(Role.FAULT, 1.0, ratio=False, worse=1),
    "memory": Metric(Role.RESOURCE, 0.20),
    "collecting": Metric(Role.RESOURCE, 0.05, ratio=False, worse=1),  # garbage, share of the time
    "cpu": Metric(Role.RESOURCE, 0.40),
    "network_in": Metric(Role.RESOURCE, 0.40),
    "network_out": Metric(Role.RESOURCE, 0.40),
    "disk": Metric(Role.RESOURCE, 0.05, ratio=False, worse=1),  # share of the volume
    "inodes": Metric(Role.RESOURCE, 0.05, ratio=False, worse=1),
    "open_files": Metric(Role.RESOURCE, 0.40),
    "threads": Metric(Role.RESOURCE, 0.40),
    "gpu_memory": Metric(Role.RESOURCE, 0.15),
    "gpu_activity": Metric(Role.EFFECT, 0.15, ratio=False),
    "gpu_clock": Metric(Role.RESOURCE, 0.08, worse=-1),
    "gpu_temperature": Metric(Role.RESOURCE, 8.0, ratio=False, worse=1),
    "gpu_power": Metric(Role.EFFECT, 0.20),
    "computation": Metric(Role.COMPUTATION, 0.15, worse=1),
    "iteration": Metric(Role.EFFECT, 0.15),
    # What computation leaves of an iteration. Where that is little, a small change of computation is a large ratio.
    "wait": Metric(Role.EFFECT, 0.15, ratio=False, part_of="iteration"),
    "loss": Metric(Role.LOSS, 0.02, ratio=False),  # of the level
    "grad_norm": Metric(Role.EFFECT, 0.60),
    "output": Metric(Role.NUMBER, 0.40, ratio=False),  # of the level
    "error_lines": Metric(Role.ERRORS, 1.0, ratio=False),
}
_UNKNOWN: Final = Metric(Role.RESOURCE, 0.40)


def known_metrics() -> Mapping[str, Metric]:
    """Return all metrics that are known by their name before a colon."""
    return _TABLE


def metric(name: str) -> Metric:
    """Return how the metric of this name is compared. What follows a colon, such as a volume, is of one kind."""
    return _TABLE.get(name.partition(":")[0], _UNKNOWN)
