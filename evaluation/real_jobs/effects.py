"""What a job does of its own accord, and what breaks: each function returns an effect that writes into a scene."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from evaluation.real_jobs.scene import Broken, Effect, Scene, between
from falcon_sim.job.pipeline import Floats

ONSET = 400  # of a fault, if nothing else is said

# -- the job's own doing ---------------------------------------------------------------------------------------------


def steps_of_microbatches(*steps: tuple[int, int]) -> Effect:
    """Change the number of micro-batches at given iterations: batch ramp-up, gradient accumulation that grows."""

    def effect(scene: Scene) -> None:
        for first, count in steps:
            scene.microbatches[between(scene, first)] = count

    return effect


def several_counts(counts: tuple[int, ...], every: int) -> Effect:
    """Draw the number of micro-batches again each ``every`` iterations."""

    def effect(scene: Scene) -> None:
        for first in range(0, scene.iterations, every):
            scene.microbatches[between(scene, first, first + every)] = scene.rng.choice(counts)

    return effect


def steps_of_length(*steps: tuple[int, float]) -> Effect:
    """Change the work of all micro-batches at given iterations: a curriculum of longer sequences, everybody slower."""

    def effect(scene: Scene) -> None:
        for first, factor in steps:
            scene.work[between(scene, first)] = factor

    return effect


def lengths_of_batches(spread: float) -> Effect:
    """Give all replicas sequences of similar length in an iteration, and another length in the next."""

    def effect(scene: Scene) -> None:
        scene.work *= np.exp(spread * scene.rng.standard_normal((scene.iterations, 1)))

    return effect


def everybody(first: int, factor: float, settle: int = 1) -> Effect:
    """Let all ranks compute ``factor`` times as long from an iteration on, reached within ``settle`` iterations."""

    def effect(scene: Scene) -> None:
        since = np.arange(scene.iterations) - first + 1
        scene.compute *= (1 + (factor - 1) * np.clip(since / settle, 0, 1))[:, None]

    return effect


def tide(swing: float, period: int) -> Effect:
    """Let all ranks' speed swing slowly together: temperature, a shared file system by day and by night."""

    def effect(scene: Scene) -> None:
        turns = np.arange(scene.iterations) / period + scene.rng.random()
        scene.compute *= (1 + swing * np.sin(2 * np.pi * turns))[:, None]

    return effect


def slower_by_nature(rank: int, factor: float) -> Effect:
    """Let a rank compute ``factor`` times as long as the others from the beginning: no two devices are equal."""

    def effect(scene: Scene) -> None:
        scene.compute[:, rank] *= factor

    return effect


def warm_up(iterations: int, factor: float) -> Effect:
    """Let the first iterations be slow (compilation, autotuning, cold caches), less and less."""

    def effect(scene: Scene) -> None:
        fading = np.exp(-3.0 * np.arange(scene.iterations) / iterations)
        scene.compute *= (1 + (factor - 1) * fading)[:, None]

    return effect


def uploads(every: int, lasting: int, factor: float) -> Effect:
    """Upload a checkpoint in the background: all ranks are slower for a while, some more than others."""

    def effect(scene: Scene) -> None:
        for first in range(every, scene.iterations, every):
            share = 1 + (factor - 1) * scene.rng.uniform(0.6, 1.4, scene.compute.shape[1])
            scene.compute[between(scene, first, first + lasting)] *= share

    return effect


def first_rank_saves(every: int, lasting: int, factor: float) -> Effect:
    """Let rank 0 alone serialise and upload a checkpoint in the background."""

    def effect(scene: Scene) -> None:
        for first in range(every, scene.iterations, every):
            scene.compute[between(scene, first, first + lasting), 0] *= factor

    return effect


def cold_epochs(every: int, lasting: int, factor: float) -> Effect:
    """Begin each epoch with a cold cache: data come late everywhere, less and less, unequally by node."""

    def effect(scene: Scene) -> None:
        procs = scene.job.procs_per_node
        for first in range(every, scene.iterations, every):
            rows = between(scene, first, first + lasting)
            fading = 1 - np.arange(rows.stop - rows.start) / lasting
            by_node = (factor - 1) * scene.rng.uniform(0.5, 1.5, scene.nodes)
            scene.compute[rows] *= 1 + fading[:, None] * np.repeat(by_node, procs)

    return effect


def evaluations(every: int, seconds: float) -> Effect:
    """Evaluate now and then: other calls, and no training meanwhile."""

    def effect(scene: Scene) -> None:
        scene.evaluated[every::every] = True
        scene.pause[every::every] += seconds

    return effect


def pauses(every: int, seconds: float) -> Effect:
    """Stand still now and then, as for a checkpoint that is written while all wait."""

    def effect(scene: Scene) -> None:
        scene.pause[every::every] += seconds * scene.rng.uniform(0.8, 1.2, len(scene.pause[every::every]))

    return effect


def hiccups(share: float, factor: float) -> Effect:
    """Let a rank's data come late in a share of its iterations."""

    def effect(scene: Scene) -> None:
        hit = scene.rng.random(scene.compute.shape) < share
        scene.compute[hit] *= 1 + (factor - 1) * scene.rng.exponential(1.0, int(hit.sum()))

    return effect


def collections(every: int, factor: float) -> Effect:
    """Let each rank collect garbage every so often, each at its own time."""

    def effect(scene: Scene) -> None:
        phases = scene.rng.integers(every, size=scene.compute.shape[1])
        hit = (np.arange(scene.iterations)[:, None] + phases) % every == every - 1
        scene.compute[hit] *= factor

    return effect


def heavy_tails(share: float) -> Effect:
    """Let data come late in a share of all iterations, by Pareto's law: one stall of a hundred is ten times as long."""

    def effect(scene: Scene) -> None:
        hit = scene.rng.random(scene.iterations) < share
        ranks = scene.rng.integers(scene.compute.shape[1], size=scene.iterations)
        scene.compute[hit, ranks[hit]] *= 1 + 0.5 * (1 + scene.rng.pareto(1.5, int(hit.sum())))

    return effect


def growing_collections(every: int, gain: float) -> Effect:
    """Let each rank collect garbage every so often, and for longer each time, since its heap grows."""

    def effect(scene: Scene) -> None:
        phases = scene.rng.integers(every, size=scene.compute.shape[1])
        iterations = np.arange(scene.iterations)[:, None]
        hit = (iterations + phases) % every == every - 1
        scene.compute *= np.where(hit, 1 + gain * iterations / scene.iterations, 1.0)

    return effect


def sawtooth(height: float, period: int) -> Effect:
    """Let all ranks become slower by and by, and fast again at once, as an allocator that is emptied at times."""

    def effect(scene: Scene) -> None:
        scene.compute *= (1 + height * (np.arange(scene.iterations) % period) / period)[:, None]

    return effect


def scales(factors: tuple[float, ...], every: int) -> Effect:
    """Draw the size of all images again each ``every`` iterations, which no call shows."""

    def effect(scene: Scene) -> None:
        for first in range(0, scene.iterations, every):
            scene.compute[between(scene, first, first + every)] *= scene.rng.choice(factors)

    return effect


def hidden_lengths(spread: float) -> Effect:
    """Give each rank packed sequences of another length in each iteration, in calls of one size."""

    def effect(scene: Scene) -> None:
        scene.compute *= np.exp(spread * scene.rng.standard_normal(scene.compute.shape))

    return effect


def hot_expert(factor: float, grows: int, stays: int) -> Effect:
    """Send more and more tokens to an expert, for some hundred iterations; then another expert is the hot one."""

    def effect(scene: Scene) -> None:
        last = -1
        for first in range(150, scene.iterations, grows + stays):
            replica = int(scene.rng.choice([place for place in range(scene.data) if place != last]))
            rows = between(scene, first, first + grows + stays)
            since = np.arange(rows.stop - rows.start)
            scene.work[rows, replica] *= 1 + (factor - 1) * np.minimum(1, since / grows)
            last = replica

    return effect


def wandering_work(spread: float, memory: int) -> Effect:
    """Let each replica's work wander for itself (documents of a shard are alike): AR(1) with such a memory."""

    def effect(scene: Scene) -> None:
        keep = np.exp(-1 / memory)
        steps = spread * np.sqrt(1 - keep**2) * scene.rng.standard_normal(scene.work.shape)
        level = spread * scene.rng.standard_normal(scene.work.shape[1])
        for iteration, step in enumerate(steps):
            level = keep * level + step
            scene.work[iteration] *= np.exp(level)

    return effect


def uneven_stages(factor: float) -> Effect:
    """Give the last stage more work than the others (the vocabulary's layer), from the beginning."""

    def effect(scene: Scene) -> None:
        scene.compute[:, -scene.compute.shape[1] // scene.job.parallelism.pipeline :] *= factor

    return effect


def busy_first_rank(factor: float) -> Effect:
    """Let rank 0 do more than the others from the beginning: logs, metrics."""

    def effect(scene: Scene) -> None:
        scene.compute[:, 0] *= factor

    return effect


def neighbours(share: float, factor: float, lasting: tuple[int, int]) -> Effect:
    """Let other programs disturb a node for a few iterations, now this node, now that."""

    def effect(scene: Scene) -> None:
        for first in np.flatnonzero(scene.rng.random(scene.iterations) < share).tolist():
            node, length = int(scene.rng.integers(scene.nodes)), int(scene.rng.integers(*lasting))
            slow = 1 + (factor - 1) * scene.rng.uniform(0.3, 1.0)
            scene.slowed[between(scene, first, first + length), node] *= slow

    return effect


def blip(first: int, lasting: int, factor: float) -> Effect:
    """Let a node be slow once, for a moment."""

    def effect(scene: Scene) -> None:
        scene.slowed[between(scene, first, first + lasting), int(scene.rng.integers(scene.nodes))] *= factor

    return effect


# -- faults ----------------------------------------------------------------------------------------------------------


def straggler(factor: float, onset: int = ONSET) -> Effect:
    """Let one rank's device be slow for good."""
    return _slow(onset, lambda since: np.full(len(since), factor))


def ramp(gain: float, over: int, onset: int = ONSET) -> Effect:
    """Let a device become slower and slower."""
    return _slow(onset, lambda since: 1 + gain * np.minimum(1, since / over))


def stairs(gain: float, every: int, top: int, onset: int = ONSET) -> Effect:
    """Let a device become slower step by step."""
    return _slow(onset, lambda since: 1 + gain * np.minimum(top, 1 + since // every))


def flapping(factor: float, share: float, period: int, onset: int = ONSET) -> Effect:
    """Let a device be slow for a share of the time, again and again."""
    return _slow(onset, lambda since: np.where(since % period < share * period, factor, 1.0))


def pulses(factor: float, every: int, onset: int = ONSET, *, regular: bool = True) -> Effect:
    """Let a device be slow in one iteration of so many: in each ``every``-th, or at random with that share."""

    def effect(scene: Scene) -> None:
        drawn = scene.rng.random(scene.iterations - onset) < 1 / every
        slow = _slow(onset, lambda since: np.where(since % every == 0 if regular else drawn, factor, 1.0))
        slow(scene)

    return effect


def near_threshold(low: float, high: float, every: int, onset: int = ONSET) -> Effect:
    """Let a device be slower by about what counts as slow: now a little less, now a little more."""
    return _slow(onset, lambda since: np.where(since // every % 2 == 0, high, low))


def slow_node(factor: float, onset: int = ONSET) -> Effect:
    """Let all ranks of a node be slow for good."""

    def effect(scene: Scene) -> None:
        node = _another_node(scene)
        scene.slowed[between(scene, onset), node] *= factor
        scene.broken.append(Broken(node=node, onset=onset))

    return effect


def slow_link(factor: float, onset: int = ONSET) -> Effect:
    """Let a node's network be slow for good."""

    def effect(scene: Scene) -> None:
        node = _another_node(scene)
        scene.links[between(scene, onset), node] *= factor
        scene.broken.append(Broken(node=node, onset=onset, link=True))

    return effect


def _slow(onset: int, factors: Callable[[Floats], Floats]) -> Effect:
    def effect(scene: Scene) -> None:
        node, proc = _another_node(scene), int(scene.rng.integers(scene.job.procs_per_node))
        since = np.arange(scene.iterations - onset)
        slow: Floats = factors(since)
        scene.slowed[onset:, node, proc] *= slow
        scene.broken.append(Broken(node=node, onset=onset))

    return effect


def _another_node(scene: Scene) -> int:
    """Draw a node that has no fault yet."""
    taken = {broken.node for broken in scene.broken}
    return int(scene.rng.choice([node for node in range(scene.nodes) if node not in taken]))
