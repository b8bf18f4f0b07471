"""The model against two production jobs (``stragglers/`` of the public data): step times, no parameter tuned.

*Parameters*: each worker's forward and backward times and the collectives' transfers, as medians over the first half of
the recorded steps; the model then predicts the steps of the second half, once with passes that all take their median,
once with the spread of micro-batches and of passes that the first half shows. *Replay*: every pass of a step with its
own recorded duration through our schedule; only the waits are ours.
"""

from __future__ import annotations

import csv
import gzip
import statistics
from collections import defaultdict

import msgspec
import numpy as np

from benchmarks.public_data import public_file
from falcon_sim.job.model import NORM_SECONDS, Conditions, JobModel
from falcon_sim.job.pipeline import Floats, Pass, one_f_one_b, play
from falcon_sim.job.scenario import Degrees, Job

_COLLECTIVES = (
    "params-all-gather",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
)
_DRAWN = 500  # iterations
Worker = tuple[int, int]  # data-parallel rank, stage


class Step(msgspec.Struct):
    """One recorded step, seconds."""

    number: int
    seconds: float = 0.0
    passes: dict[tuple[Worker, bool, int], float] = {}  # worker, forward, micro-batch
    by_kind: dict[str, dict[Worker, float]] = {}  # what is neither a pass nor a send
    sends: list[float] = []


def load(job: str) -> list[Step]:
    """Return the steps of ``AR`` or ``ST``; raises FileNotFoundError without the data."""
    steps: dict[int, Step] = {}
    with gzip.open(public_file(f"stragglers/trace-{job}.csv.gz"), "rt") as lines:
        for row in csv.DictReader(lines):
            step = steps.setdefault(int(row["step"]), Step(int(row["step"]), passes={}, by_kind={}, sends=[]))
            worker, seconds = (int(row["dp_rank"]), int(row["stage"])), float(row["duration"])
            step.seconds = max(step.seconds, float(row["start_ts"]) + seconds)
            kind = row["optype"]
            if kind.endswith("-compute"):
                step.passes[worker, kind.startswith("forward"), int(row["mb_id"])] = seconds
            elif kind.endswith("-send"):
                step.sends.append(seconds)
            else:
                step.by_kind.setdefault(kind, {})[worker] = seconds
    return [steps[number] for number in sorted(steps)]


def overhead(steps: list[Step]) -> float:
    """Sum collectives and optimizer: the transfer is what the last to arrive sees (the minimum over the members)."""
    transfers = sum(
        statistics.median(min(step.by_kind[kind].values()) for step in steps if kind in step.by_kind)
        for kind in _COLLECTIVES
    )
    return transfers + statistics.median(max(step.by_kind["optimizer"].values()) for step in steps)


def shape(steps: list[Step]) -> tuple[int, int, int]:
    """Return replicas, stages and micro-batches."""
    keys = list(steps[0].passes)
    return 1 + max(w[0] for w, _, _ in keys), 1 + max(w[1] for w, _, _ in keys), 1 + max(m for _, _, m in keys)


def spread(steps: list[Step]) -> tuple[float, float]:
    """Return the noise of a micro-batch's work and of a pass, as standard deviations of logarithms.

    A pass's residual is the logarithm of its time over the median of its worker and direction. Passes of a micro-batch
    share its work: the variance between micro-batches' means, less what the passes' own scatter gives the means.
    """
    times: dict[tuple[Worker, bool], list[float]] = defaultdict(list)
    for step in steps:
        for (worker, forward, _), seconds in step.passes.items():
            times[worker, forward].append(seconds)
    usual = {key: statistics.median(values) for key, values in times.items()}
    residuals: dict[tuple[int, int, int], list[float]] = defaultdict(list)
    for step in steps:
        for (worker, forward, microbatch), seconds in step.passes.items():
            residuals[step.number, worker[0], microbatch].append(float(np.log(seconds / usual[worker, forward])))
    groups = list(residuals.values())
    within = statistics.fmean(statistics.variance(group) for group in groups)
    between = statistics.variance(statistics.fmean(group) for group in groups) - within / len(groups[0])
    return max(0.0, between) ** 0.5, within**0.5


def predicted(train: list[Step], work_noise: float = 0.0, pass_noise: float = 0.0) -> float:
    """Return the seconds of a step by the simulator's own job model: the median of many where there is noise."""
    replicas, stages, microbatches = shape(train)
    times: dict[tuple[Worker, bool], list[float]] = defaultdict(list)
    for step in train:
        for (worker, forward, _), seconds in step.passes.items():
            times[worker, forward].append(seconds)
    by_worker = {key: statistics.median(values) for key, values in times.items()}
    stage_times = {
        (stage, forward): min(by_worker[(replica, stage), forward] for replica in range(replicas))
        for stage in range(stages)
        for forward in (True, False)
    }
    whole = {stage: stage_times[stage, True] + stage_times[stage, False] for stage in range(stages)}
    factors = [
        (by_worker[(replica, stage), True] + by_worker[(replica, stage), False]) / whole[stage]
        for stage in range(stages)
        for replica in range(replicas)
    ]
    job = Job(
        parallelism=Degrees(data=replicas, pipeline=stages),
        procs_per_node=1,
        microbatches=microbatches,
        forward_seconds=[stage_times[stage, True] for stage in range(stages)],
        backward_seconds=[stage_times[stage, False] for stage in range(stages)],
        transfer_seconds=_transfer(train),
        reduce_seconds=overhead(train),
        optimizer_seconds=0.0,
        noise=0.0,
        transfer_noise=0.0,
        work_noise=work_noise,
        pass_noise=pass_noise,
    )
    model = JobModel(job, np.random.default_rng(0))
    healthy = model.healthy()
    drawn = _DRAWN if work_noise or pass_noise else 1
    block = model.block(drawn, Conditions(np.array(factors), healthy.links, healthy.counts))
    return float(np.median(block.seconds)) - NORM_SECONDS


def _transfer(steps: list[Step]) -> float:
    """Return the time of a send that does not wait for its receiver: the lower decile [s]."""
    return float(np.quantile([seconds for step in steps for seconds in step.sends], 0.1))


def replayed(step: Step, fixed_seconds: float, transfer_seconds: float) -> float:
    """Return the seconds of a step whose passes take as long as they were recorded."""
    replicas, stages, microbatches = shape([step])

    def duration(work: Pass) -> Floats:
        return np.array(
            [step.passes[(replica, work.stage), work.forward, work.microbatch] for replica in range(replicas)]
        )

    played = play(
        one_f_one_b(stages, microbatches), duration, lambda _source, _work: np.full(replicas, transfer_seconds)
    )
    return max(float(end.max()) for end in played.ends) + fixed_seconds


def table() -> list[str]:
    """Return Markdown rows."""
    heads = ["job", "layout", "steps", "measured, median", "error of the model without noise"]
    heads += ["noise of micro-batches, of passes", "error of the model", "error of the replay, median (worst)"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for job in ("AR", "ST"):
        steps = load(job)
        train, test = steps[: len(steps) // 2], steps[len(steps) // 2 :]
        replicas, stages, microbatches = shape(steps)
        measured = statistics.median(step.seconds for step in test)
        plain_error = predicted(train) / measured - 1
        noise = spread(train)
        model_error = predicted(train, *noise) / measured - 1
        fixed, transfer = overhead(train), _transfer(train)
        errors = [replayed(step, fixed, transfer) / step.seconds - 1 for step in test]
        worst = max(errors, key=abs)
        lines.append(
            f"| {job} | {replicas} DP × {stages} PP, {microbatches} micro-batches | {len(train)} + {len(test)}"
            f" | {measured:.3f} s | {plain_error:+.1%} | {noise[0]:.0%}, {noise[1]:.0%} | {model_error:+.1%} |"
            f" {statistics.median(errors):+.1%} ({worst:+.1%}) |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(table()))
