"""When to act on a slowdown: rent (endure) until the loss equals the price of the next action (FALCON §5.2, alg. 1).

How long a slowdown will last cannot be known. Acting when the accumulated loss Σ (t_slow − t_healthy) reaches the
action's overhead costs at most twice what a clairvoyant would have paid. The loss counts from the onset and is not
reset by an action; strategies come in the order of their overheads, first configured, then learned from measurement.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

LEARNING_RATE = 0.5  # weight of the newest measurement: conditions drift, single measurements are noisy


class Loss(msgspec.Struct, frozen=True, kw_only=True):
    """Time lost to an incident, and how far the iterations have been counted."""

    seconds: float = 0.0
    generation: int = 0
    counted_iterations: int = 0  # of that generation


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A strategy that applies to the incident, and what it costs the job."""

    name: str
    overhead_seconds: float


def accumulate(loss: Loss, *, generation: int, iterations: int, slow_ns: float, healthy_ns: float) -> Loss:
    """Count the iterations since the last call; a new generation starts from its first iteration.

    ``slow_ns`` is the typical duration of the new iterations. Iterations that were not slow add nothing.
    """
    counted = loss.counted_iterations if generation == loss.generation else 0
    fresh = max(0, iterations - counted)
    excess_seconds = max(0.0, slow_ns - healthy_ns) / 1e9
    return Loss(
        seconds=loss.seconds + fresh * excess_seconds,
        generation=generation,
        counted_iterations=max(counted, iterations),
    )


def next_strategy(candidates: Sequence[Candidate], applied: Collection[str]) -> Candidate | None:
    """The cheapest strategy that has not been applied to this incident yet; None at the ladder's end."""
    left = [candidate for candidate in candidates if candidate.name not in applied]
    return min(left, key=lambda candidate: candidate.overhead_seconds, default=None)


def due(candidate: Candidate, loss: Loss) -> bool:
    """Whether the loss has reached the strategy's price."""
    return loss.seconds >= candidate.overhead_seconds


def learn(known_seconds: float | None, measured_seconds: float) -> float:
    """The overhead after one more measurement; the first measurement replaces the configured guess."""
    if known_seconds is None:
        return measured_seconds
    return known_seconds + LEARNING_RATE * (measured_seconds - known_seconds)
