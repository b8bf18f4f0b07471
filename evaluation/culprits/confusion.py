"""The confusion matrix: faults put into simulated 3D-parallel jobs, and what the comparison of the ranks says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec
import numpy as np

from evaluation.culprits.parallel import GPUS_PER_NODE, HEALTHY_CYCLES, SLOW_CYCLES, Fault, FaultName, Shape, Simulation
from falcon_core.signals.job.culprits import RankView, Verdict, attribute_slowdown
from falcon_core.signals.job.transfers import match, slow_links

SHAPES = {"64": Shape(4, 4, 4), "256": Shape(4, 8, 8), "1024": Shape(8, 16, 8)}
SINGLE: tuple[FaultName, ...] = (
    "slow GPU",
    "node contention",
    "late data",
    "slow TP link",
    "slow DP link",
    "slow PP link",
    "more work",
)
DOUBLE: tuple[tuple[FaultName, FaultName], ...] = (
    ("slow GPU", "slow GPU"),
    ("slow GPU", "slow DP link"),
    ("node contention", "slow TP link"),
)


class Component(msgspec.Struct, frozen=True):
    """A broken part of the job: a kind and the ranks."""

    kind: str
    ranks: tuple[int, ...]


def truth(fault: Fault, shape: Shape) -> Component | None:
    """Return what the fault breaks; None where nothing is to be blamed."""
    rank = fault.rank
    match fault.name:
        case "slow GPU" | "late data":
            return Component(fault.name, (rank,))
        case "node contention":
            first = rank // GPUS_PER_NODE * GPUS_PER_NODE
            return Component(fault.name, tuple(range(first, first + GPUS_PER_NODE)))
        case "slow TP link":
            return Component(fault.name, shape.tensor_group(rank))
        case "slow DP link":
            return Component(fault.name, shape.data_group(rank))
        case "slow PP link":
            return Component(fault.name, (rank, rank + shape.data * shape.tensor))
        case _:
            return None


def component_of(verdict: Verdict) -> Component:
    """Translate a verdict into the words of ``Component``."""
    match verdict.kind:
        case "Computation" if verdict.node:
            kind = "node contention"
        case "Computation" if len(verdict.ranks) > 1:
            kind = "group"
        case "Computation":
            kind = "late data" if verdict.stalled else "slow GPU"
        case "Communication":
            kind = f"slow {verdict.comm[:2].upper()} link"
        case _:
            kind = "slow PP link" if verdict.kind == "Suspected" else verdict.kind
    return Component(kind, verdict.ranks)


def place(name: FaultName, shape: Shape, rng: np.random.Generator) -> Fault:
    """Place a fault at random. The first stage loads the data; no pipeline link begins at the last stage."""
    per_stage = shape.data * shape.tensor
    last = {"late data": per_stage, "slow PP link": shape.world - per_stage}.get(name, shape.world)
    return Fault(name, int(rng.integers(last)), degree=float(rng.uniform(1.3, 2.0)))


def trial(
    names: tuple[FaultName, ...], shape: Shape, seed: int, noise: float = 0.03, hidden: frozenset[int] = frozenset()
) -> tuple[list[Component], list[Component], Simulation]:
    """Return the truth, the verdicts, and the job."""
    rng = np.random.default_rng([seed, shape.world, len(names), SINGLE.index(names[0])])
    faults = tuple(place(name, shape, rng) for name in names)
    job = Simulation(shape, seed, noise)
    job.run(HEALTHY_CYCLES)
    job.run(SLOW_CYCLES + 1, faults)
    views, loss = job.views(hidden)
    truths = [component for fault in faults if (component := truth(fault, shape)) is not None]
    return truths, [component_of(verdict) for verdict in attribute_slowdown(views, loss_ns=max(loss, 1.0))], job


def matrix(size: str, seeds: int, noise: float = 0.03) -> list[str]:
    """Return a table: rows are faults, columns verdicts; at the right: exactly the components, with their kinds."""
    shape = SHAPES[size]
    columns = [*SINGLE[:-1], "group", "nobody"]
    lines = [
        f"| {size} ranks (pp {shape.pipeline}, dp {shape.data}, tp {shape.tensor}), noise {noise:.0%} | "
        + " | ".join(columns)
        + " | right component | right kind, nothing else |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for names in [*((name,) for name in SINGLE), *DOUBLE]:
        said: Counter[str] = Counter()
        components = exact = 0
        for seed in range(seeds):
            truths, found, _ = trial(names, shape, seed, noise)
            said.update([component.kind for component in found] or ["nobody"])
            components += {component.ranks for component in truths} <= {component.ranks for component in found}
            exact += set(truths) == set(found)
        cells = [str(said[column] or "") for column in columns]
        lines.append(f"| {' + '.join(names)} | {' | '.join(cells)} | {components}/{seeds} | {exact}/{seeds} |")
    return lines


def sensitivity(seeds: int) -> list[str]:
    """Find how slow a GPU has to be; the published rule: compute over 1.5 × the median of the ranks of its stage."""
    shape = SHAPES["64"]
    lines = [
        "| slow GPU of 64, compute × | iteration gains | named alone, noise 3 % | noise 10 % | median rule, 3 % |",
        "|---|---|---|---|---|",
    ]
    for degree in (1.05, 1.1, 1.2, 1.3, 1.6, 2.0):
        right: Counter[str] = Counter()
        grown = []
        for seed in range(seeds):
            rank = int(np.random.default_rng([seed, 7]).integers(shape.world))
            views, loss = _slow_gpu(shape, seed, 0.03, rank, degree)
            grown.append(loss / (views[0].iteration_ns - loss))
            right["3 %"] += _named(views, loss) == [(rank,)]
            by_level = [verdict.ranks for verdict in attribute_slowdown(views) if verdict.kind == "Computation"]
            right["median rule"] += by_level == [(rank,)]
            right["10 %"] += _named(*_slow_gpu(shape, seed, 0.10, rank, degree)) == [(rank,)]
        counts = " | ".join(f"{right[key]}/{seeds}" for key in ("3 %", "10 %", "median rule"))
        lines.append(f"| {degree} | {np.median(grown):.1%} | {counts} |")
    return lines


def _slow_gpu(shape: Shape, seed: int, noise: float, rank: int, degree: float) -> tuple[list[RankView], float]:
    """Return what the ranks say of themselves while one GPU is slow, and the loss, ns."""
    job = Simulation(shape, seed, noise)
    job.run(HEALTHY_CYCLES)
    job.run(SLOW_CYCLES + 1, (Fault("slow GPU", rank, degree),))
    return job.views()


def _named(views: Sequence[RankView], loss: float) -> list[tuple[int, ...]]:
    return [verdict.ranks for verdict in attribute_slowdown(views, loss_ns=max(loss, 1.0))]


def unseen(seeds: int) -> list[str]:
    """Judge a slow GPU whose tensor-parallel calls are not seen (a captured graph): its group is the right answer."""
    shape = SHAPES["64"]
    right = 0
    for seed in range(seeds):
        truths, found, _ = trial(("slow GPU",), shape, seed, hidden=frozenset({1}))
        right += [component.ranks for component in found] == [shape.tensor_group(truths[0].ranks[0])]
    return [f"Slow GPU, tensor-parallel calls unseen, 64 ranks: its tensor-parallel group named in {right}/{seeds}."]


def links(size: str, seeds: int) -> list[str]:
    """Run profile mode on the same jobs: which communicators' transfers are called slow."""
    shape = SHAPES[size]
    lines = [f"| profile mode, {size} ranks | right link, alone | nothing called slow | wrong |", "|---|---|---|---|"]
    names: tuple[FaultName, ...] = ("slow TP link", "slow DP link", "slow GPU", "node contention", "more work")
    for name in names:
        right = silent = 0
        for seed in range(seeds):
            truths, _, job = trial((name,), shape, seed)
            found = {link.members for link in slow_links(match(*job.profile()))}
            right += "link" in name and found == {truths[0].ranks}
            silent += not found
        lines.append(f"| {name} | {right if 'link' in name else ''} | {silent} | {seeds - right - silent} |")
    return lines
