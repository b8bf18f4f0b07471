"""What the judgement costs: a rank's own half beside the mere following of its cycles, and the comparison."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import msgspec

from evaluation.culprits.confusion import SHAPES
from evaluation.culprits.parallel import HEALTHY_CYCLES, SLOW_CYCLES, Fault, Simulation
from falcon_core.signals.calls.stream import Tokenizer
from falcon_core.signals.iterations.segmenter import IterationTracker
from falcon_core.signals.job.culprits import attribute_slowdown
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import Op
from tests.unit.signals.streams import MS, Call, Script, ddp

_ITERATIONS = 400
_BUCKETS = 16


def _seconds(work: Callable[[], object], times: int = 5) -> float:
    """Return the median CPU time [s]."""
    spent = []
    for _ in range(times):
        begun = time.process_time()
        work()
        spent.append(time.process_time() - begun)
    return statistics.median(spent)


def table() -> list[str]:
    """Return Markdown rows."""
    cycle = [*ddp(_BUCKETS), Call(Op.ALL_REDUCE, 4, 5 * MS)]
    script = Script(jitter=0.03)
    script.cycle(cycle, times=_ITERATIONS)
    batches = [script.records[at : at + len(cycle)] for at in range(0, len(script.records), len(cycle))]

    def follow() -> None:
        tokenizer, tracker = Tokenizer(), IterationTracker()
        for batch in batches:
            tracker.feed(tokenizer.calls(batch))

    def chain() -> RankChain:
        whole = RankChain(Detection())
        for batch in batches:
            whole.feed(batch)
        return whole

    following, whole = _seconds(follow), _seconds(chain)
    track = len(msgspec.json.encode(chain().track()))
    lines = [
        "| what | CPU time | beside |",
        "|---|---|---|",
        f"| following the cycles, a poll of {len(cycle)} calls | {following / _ITERATIONS * 1e6:.0f} µs | 1 |",
        f"| the whole chain | {whole / _ITERATIONS * 1e6:.0f} µs | {whole / following:.1f} × |",
        f"| a rank's track, one communicator | {track} bytes | |",
    ]
    first = 0.0
    for size, shape in SHAPES.items():
        job = Simulation(shape, seed=0)
        job.run(HEALTHY_CYCLES)
        job.run(SLOW_CYCLES + 1, (Fault("slow GPU", 5),))
        views, loss = job.views()
        spent = _seconds(lambda views=views, loss=loss: attribute_slowdown(views, loss_ns=loss))  # type: ignore[misc]
        first = first or spent
        waits = max(len(view.waits) for view in views)
        lines.append(
            f"| comparison of {size} ranks, {waits} communicators each | {spent * 1e3:.1f} ms | {spent / first:.1f} × |"
        )
    return lines
