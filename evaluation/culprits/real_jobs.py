"""Two production jobs whose culprits are known, step by step (``stragglers/`` of the public data).

AR has one slow worker (data-parallel rank 0, stage 0); ST has a heavy last pipeline stage, for which nobody may be
evicted. Both are slow in every step that was recorded, so there is no healthy baseline: this is judgement by level.

The traces hold computation as well. Falcon sees communication alone; the benchmark therefore drops the rest, turns what
remains into ring records, and lets the rank's own attribution find the compute time in the gaps.
"""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict

import msgspec
import numpy as np

from benchmarks import public_data
from falcon_core.signals.attribution.compute_and_wait import compute_ns, work_of
from falcon_core.signals.calls.stream import Tokenizer
from falcon_core.signals.iterations.segmenter import Iteration
from falcon_core.signals.job.culprits import RankView, Verdict, attribute_slowdown
from falcon_core.wire.ring import RECORD_DTYPE, SYNCHRONISING_OPS, Kind, Op, RecordArray

DATA = public_data.DATA
CULPRITS: dict[str, frozenset[tuple[int, int]]] = {"AR": frozenset({(0, 0)}), "ST": frozenset()}  # (dp rank, stage)

_OPS = {
    "params-all-gather": Op.ALL_GATHER,
    "grads-reduce-scatter": Op.REDUCE_SCATTER,
    "embedding-grads-all-reduce": Op.ALL_REDUCE,
    "layernorm-grads-all-reduce": Op.ALL_REDUCE,
    "optimizer-clip-main-grad": Op.ALL_REDUCE,  # of the gradient's norm
    "forward-send": Op.SEND,
    "backward-send": Op.SEND,
    "forward-recv": Op.RECV,
    "backward-recv": Op.RECV,
}


class Call(msgspec.Struct, frozen=True):
    """One communication call; ns since the step began."""

    op: Op
    start_ns: int
    duration_ns: int


class Step(msgspec.Struct, frozen=True):
    """One recorded step: the calls of each worker by (dp rank, stage), and when the last call was done."""

    number: int
    workers: dict[tuple[int, int], list[Call]]
    end_ns: int


def load(job: str) -> list[Step]:
    """Return the steps of ``AR`` or ``ST``; raises FileNotFoundError without the data."""
    calls: dict[int, dict[tuple[int, int], list[Call]]] = defaultdict(lambda: defaultdict(list))
    ends: dict[int, int] = defaultdict(int)
    with gzip.open(public_data.public_file(f"stragglers/trace-{job}.csv.gz"), "rt") as lines:
        for row in csv.DictReader(lines):
            step = int(row["step"])
            start, duration = round(float(row["start_ts"]) * 1e9), round(float(row["duration"]) * 1e9)
            ends[step] = max(ends[step], start + duration)
            if (op := _OPS.get(row["optype"])) is not None:
                worker = int(row["dp_rank"]), int(row["stage"])
                calls[step][worker].append(Call(op, start, duration))
    return [Step(step, calls[step], ends[step]) for step in sorted(calls)]


def _records(calls: list[Call]) -> RecordArray:
    records = np.zeros(len(calls), dtype=RECORD_DTYPE)
    ordered = sorted(calls, key=lambda call: call.start_ns)
    records["seq"] = np.arange(1, len(calls) + 1)
    records["t_start_ns"] = [call.start_ns for call in ordered]
    records["duration_ns"] = [call.duration_ns for call in ordered]
    records["op"] = [call.op for call in ordered]
    records["comm"] = records["op"]
    records["kind"] = Kind.BLOCKING
    return records


def views(step: Step, *, p2p_is_compute: bool = False, stages: bool = True) -> list[RankView]:
    """Return what the ranks' agents would report of this step.

    ``p2p_is_compute``: as if sends and receives went unseen. Without ``stages`` the calls decide which ranks do the
    same work.
    """
    found = []
    for place, (worker, calls) in enumerate(sorted(step.workers.items())):
        seen = [call for call in calls if not p2p_is_compute or call.op in SYNCHRONISING_OPS]
        records = _records(seen)
        columns = Tokenizer().calls(records)
        own = compute_ns(Iteration(1, 0, step.end_ns, False, columns))
        found.append(
            RankView(
                rank=place,
                iteration_ns=step.end_ns,
                work=str(worker[1]) if stages else work_of(records),
                compute_ns=own,
            )
        )
    return found


def named(step: Step, verdicts: list[Verdict]) -> frozenset[tuple[int, int]]:
    """Return the workers that a judgement blames."""
    workers = sorted(step.workers)
    return frozenset(workers[rank] for verdict in verdicts if verdict.kind != "Imbalance" for rank in verdict.ranks)


def table() -> list[str]:
    """Return Markdown rows: for each job and rule, in how many steps exactly the right workers were named."""
    lines = [
        "| job | rule | steps | exactly the culprits | culprit missed | innocents named (workers) |",
        "|---|---|---|---|---|---|",
    ]
    for job, culprits in CULPRITS.items():
        steps = load(job)
        rules = (
            ("median rule of compute by stage, receives are waits", False, True),
            ("the same, receives counted as compute", True, True),
            ("the same, receives are waits, stages derived from the calls", False, False),
        )
        for label, p2p_is_compute, stages in rules:
            exact = missed = innocents = 0
            for step in steps:
                blamed = named(step, attribute_slowdown(views(step, p2p_is_compute=p2p_is_compute, stages=stages)))
                exact += blamed == culprits
                missed += not blamed >= culprits
                innocents += len(blamed - culprits)
            lines.append(f"| {job} | {label} | {len(steps)} | {exact} | {missed} | {innocents} |")
    return lines
