"""What a mixture of 64 experts costs on its host: ``make shim shim-test`` and ``python -m benchmarks.shim.experts``.

Each iteration of ITERATION_SECONDS exchanges data 768 times, in groups of 64 sends and 64 receives whose sizes change.
The shim's part is its hooks around a stand-in for NCCL, against the same calls without them. The agent's part is what
it does with the records that they leave: CPU time of one rank's chain and table, read once a second.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.shim.jobs import SHIM
from falcon_agent.rings.communicators import CommTable
from falcon_core.signals.rank.chain import RankChain
from falcon_core.wire.reporting.messages import Detection
from falcon_core.wire.ring import EXCHANGE, RECORD_DTYPE, Kind, Op, RecordArray

BENCH = Path(os.environ.get("SHIM_TEST_OUT", "")) / "exchange_bench"
ITERATION_SECONDS = 4
EXCHANGES = 768
ITERATIONS = 60


def hooks() -> dict[str, float]:
    """Return calls, records and ns of an iteration, bare and hooked."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        environment = {
            **os.environ,
            "LD_PRELOAD": str(SHIM),
            "FALCON_RING_DIR": f"{folder}/rings",
            "FALCON_CONTROL": f"{folder}/control",
        }
        done = subprocess.run(
            [str(BENCH), str(ITERATIONS)], env=environment, check=True, capture_output=True, text=True
        )
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def records() -> RecordArray:
    """Make the records of ITERATIONS, each with a sum of gradients at its end: [n], dtype RECORD_DTYPE."""
    calls = EXCHANGES + 1
    made: RecordArray = np.zeros(ITERATIONS * calls, dtype=RECORD_DTYPE)
    at = np.arange(len(made))
    sums = at % calls == EXCHANGES
    made["seq"], made["kind"], made["dtype"] = at + 1, Kind.ENQUEUED, 8
    made["op"] = np.where(sums, int(Op.ALL_REDUCE), int(Op.ALL_TO_ALL))
    made["comm"] = np.where(sums, 1, 2 | EXCHANGE)
    made["comm_seq"] = np.where(sums, at // calls, at // calls * EXCHANGES + at % calls)
    made["bytes"] = np.where(sums, 1 << 20, np.random.default_rng(1).integers(1, 1 << 24, len(made)))
    made["t_start_ns"] = ITERATION_SECONDS * 1_000_000_000 // calls * (at + calls)
    return made


def main() -> None:
    figures = hooks()
    own_ns = figures["hooked_ns"] - figures["bare_ns"]
    print(
        f"shim: {figures['calls']:.0f} calls leave {figures['records']:.0f} records; "
        f"{own_ns / figures['calls']:.1f} ns a call, {own_ns / 1e6:.1f} ms an iteration, "
        f"{own_ns / 1e7 / ITERATION_SECONDS:.2f} % of a core"
    )
    chain, table = RankChain(Detection()), CommTable()
    pieces = np.array_split(records(), ITERATIONS * ITERATION_SECONDS)
    began = time.process_time()
    for piece in pieces:
        chain.feed(piece)
        table.feed(piece)
    share = (time.process_time() - began) / len(pieces)
    print(f"agent: period {chain.period_calls} calls, {chain.iterations} iterations, {100 * share:.2f} % of a core")


if __name__ == "__main__":
    main()
