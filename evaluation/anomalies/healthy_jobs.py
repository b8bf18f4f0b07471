"""Draw healthy jobs of many kinds: what each of them does is odd, and no anomaly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from evaluation.anomalies.jobs import DAY, HOUR, MINUTE, Drivers, drivers, random_of, wandering

Array = npt.NDArray[Any]


def _spells(of: Drivers, each: tuple[float, float], lasts: tuple[float, float], rows: int) -> npt.NDArray[np.bool_]:
    """Return spells that come about each so many windows and last so many [row, window]."""
    found = np.zeros((rows, of.windows), np.bool_)
    for row in range(rows):
        at = of.random.uniform(0, each[1])
        while at < of.windows:
            end = at + of.random.uniform(*lasts)
            found[row, int(at) : int(end)] = True
            at = end + of.random.uniform(*each)
    return found


def _period(of: Drivers, period: float, begin: float, lasts: float) -> npt.NDArray[np.bool_]:
    """Return what comes once a period [window]."""
    return np.asarray((np.arange(of.windows) + begin) % period < lasts)


def _plain(of: Drivers) -> None:
    pass


def _variable_lengths(of: Drivers) -> None:
    """Let the batches of all ranks vary together, and each rank's a little."""
    random = of.random
    of.length = np.exp(wandering(random, (1, of.windows), 0.2, random.uniform(2, 60)))
    of.slow = of.slow * np.exp(wandering(random, (of.ranks, of.windows), 0.03, 3))


def _first_rank_saves(of: Drivers) -> None:
    """Let rank 0 use more memory and write a checkpoint, unmarked, while the others wait."""
    of.memory[0] += of.random.uniform(5, 15)
    saves = _period(of, of.random.uniform(10, 40) * MINUTE, of.random.uniform(0, HOUR), of.random.uniform(3, 8))
    of.memory[0] += 20 * saves
    of.io_pressure[0] += 0.5 * saves
    of.link[0] += 2.0 * saves
    of.threads[0] += 8


def _stages(of: Drivers) -> None:
    """Give the ranks the stages of a pipeline: they differ in memory, computation and transfers."""
    stage = np.arange(of.ranks)[:, None] * 4 // of.ranks
    of.memory = of.memory * (1.0 - 0.15 * stage)
    of.slow = of.slow * np.where(stage == 3, 1.4, 1.0)
    of.length = np.exp(wandering(of.random, (1, of.windows), 0.05, 10))


def _experts(of: Drivers) -> None:
    """Let the load of experts wander from rank to rank."""
    random = of.random
    of.slow = of.slow * np.exp(wandering(random, (of.ranks, of.windows), 0.06, random.uniform(1, 20) * MINUTE))


def _collections(of: Drivers) -> None:
    """Let the memory of each rank rise and fall by garbage collections of its own."""
    random = of.random
    height, period = random.uniform(2, 8), random.uniform(2, 15) * MINUTE
    begin = random.uniform(0, 1, (of.ranks, 1))
    of.memory += height * ((np.arange(of.windows)[None] / period + begin) % 1.0)


def _evaluations(of: Drivers) -> None:
    """Let all ranks evaluate now and then, unmarked: shorter steps, other memory, no loss."""
    on = _period(of, of.random.uniform(20, 60) * MINUTE, of.random.uniform(0, HOUR), of.random.uniform(6, 30))[None]
    of.length = np.where(on, 0.35, of.length)
    of.memory += np.where(on, 6.0, 0.0)
    of.missing["loss"] = np.broadcast_to(on, (of.ranks, of.windows))


def _room(of: Drivers) -> None:
    """Let the room warm up by day, and each node by itself."""
    random = of.random
    times = np.arange(of.windows)
    of.ambient += random.uniform(2, 5) * np.sin(2 * np.pi * times / DAY + random.uniform(0, 6))
    of.ambient += wandering(random, (of.ranks, of.windows), 0.8, HOUR)


def _neighbours(of: Drivers) -> None:
    """Put other pods on the nodes: they use the CPU for up to a minute now and then."""
    bursts = _spells(of, (5 * MINUTE, 60 * MINUTE), (2, 7), of.ranks)
    strength = of.random.uniform(0.1, 0.5, (of.ranks, 1))
    of.pressure += bursts * strength
    of.slow = of.slow * (1 + 0.6 * bursts * strength)


def _sleeping(of: Drivers) -> None:
    """Let the whole job rest now and then: no iteration, no loss, no work."""
    rests = _spells(of, (20 * MINUTE, 2 * HOUR), (2 * MINUTE, 40 * MINUTE), 1)
    of.active = np.where(rests, 0.0, 1.0)


def _stalls(of: Drivers) -> None:
    """Let a shared storage stall all ranks for minutes."""
    on = _spells(of, (20 * MINUTE, 2 * HOUR), (2, 10 * MINUTE), 1)
    of.link = of.link + np.where(on, of.random.uniform(0.5, 4), 0.0)
    of.io_pressure += np.where(on, 0.4, 0.0)


def _lossy(of: Drivers) -> None:
    """Lose windows on their way, and restart an agent now and then."""
    of.arrived &= of.random.uniform(size=(of.ranks, of.windows)) > 0.05
    of.arrived &= ~_spells(of, (30 * MINUTE, 4 * HOUR), (2, 12), of.ranks)


def _settling(of: Drivers) -> None:
    """Let caches of memory and disk fill, faster on some ranks, and stay."""
    random = of.random
    times = np.arange(of.windows)[None]
    of.memory += random.uniform(2, 8) * (1 - np.exp(-times / random.uniform(0.3 * HOUR, HOUR, (of.ranks, 1))))
    of.disk = of.disk + 0.2 * (1 - np.exp(-times / (2 * HOUR)))


def _phases(of: Drivers) -> None:
    """Mark checkpoints, repairs and warm-up, in which single ranks do odd things."""
    off = _spells(of, (10 * MINUTE, HOUR), (3, 5 * MINUTE), 1)[0]
    off[: 5 * MINUTE] = True
    odd = np.arange(of.ranks)[:, None] == of.random.integers(of.ranks)
    of.training &= ~off
    of.memory += np.where(off[None] & odd, 30.0, 0.0)
    of.slow = of.slow * np.where(off[None] & odd, 5.0, 1.0)
    of.throttled += np.where(off[None] & odd, 0.6, 0.0)


def _curriculum(of: Drivers) -> None:
    """Change the length of all batches for good, now and then, and with it memory and files."""
    level = np.searchsorted(np.sort(of.random.uniform(0, of.windows, 1 + of.windows // (3 * HOUR))), range(of.windows))
    of.length = (1 + 0.3 * (level % 3))[None]
    of.memory += 4.0 * (level % 3)
    of.files += 10.0 * (level % 2)


def _own_losses(of: Drivers) -> None:
    """Let each rank print the loss of its own batches, and warnings that all print alike."""
    of.loss = of.loss + of.random.normal(0, 0.08, of.loss.shape)
    of.error_lines += _spells(of, (HOUR, 3 * HOUR), (6, 4 * MINUTE), 1) * of.random.poisson(2.0, of.loss.shape)


def _two_ranks(of: Drivers) -> None:
    """Do what a job of two ranks does; ``healthy`` gives it two."""
    _first_rank_saves(of)


HEALTHY_JOBS: Final[dict[str, Callable[[Drivers], None]]] = {
    "plain": _plain,
    "batches of variable length": _variable_lengths,
    "rank 0 saves, unmarked": _first_rank_saves,
    "stages of a pipeline": _stages,
    "experts whose load wanders": _experts,
    "garbage collections": _collections,
    "evaluations, unmarked": _evaluations,
    "a warm room": _room,
    "other pods on the nodes": _neighbours,
    "a job that sleeps": _sleeping,
    "a storage that stalls all ranks": _stalls,
    "windows that get lost": _lossy,
    "caches that settle": _settling,
    "marked phases": _phases,
    "a curriculum": _curriculum,
    "each rank prints its own loss": _own_losses,
    "two ranks": _two_ranks,
}


def healthy_job(kind: str, seed: int, windows: int) -> Drivers:
    """Return the drivers of a healthy job of this kind."""
    random = random_of("healthy job", kind, seed)
    ranks = 2 if kind == "two ranks" else int(random.choice([4, 8, 8, 16]))
    found = drivers(random, ranks, windows)
    HEALTHY_JOBS[kind](found)
    return found
