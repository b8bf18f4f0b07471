"""What a checkpoint in memory costs training, beside a plain copy of the same bytes and ``torch.save``.

    make torch-venv && python -m benchmarks.checkpoint            # the table
    make torch-venv && python -m benchmarks.checkpoint --write    # writes it to RESULTS.md
    make torch-venv && python -m benchmarks.checkpoint --check    # exit code 1 where a limit is not kept

Two ranks, each with its half of 1 GiB in tensors of 8 MiB, in buffers that the agent's store has made on /dev/shm. Each
figure is the median of the rounds of a rank, and of the ranks the larger one. Needs 8 GiB of memory.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from benchmarks.limits import Limit, table
from benchmarks.results import ROOT, provenance, put
from falcon_agent.checkpoint.store import Store
from tests.integration.ports import free_port

RESULTS: Final = Path(__file__).with_name("RESULTS.md")
WORKER: Final = Path(__file__).with_name("worker.py")
PYTHON: Final = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
RANKS: Final = 2
STATE_BYTES: Final = 1 << 30  # of all ranks
ROUNDS: Final = 9
MOST_SAVE_SECONDS: Final = 0.15
MOST_RATIO: Final = 1.15
MOST_LOAD_MILLISECONDS: Final = 5.0
MOST_PERCENT: Final = 1.0
Figures = dict[str, float]


def measure(rounds: int) -> list[Figures]:
    """Run the ranks; return the figures of each, in seconds. Raises SystemExit where a rank fails."""
    folder = Path(tempfile.mkdtemp(prefix="falcon-checkpoint-", dir="/dev/shm"))
    try:
        Store(folder, RANKS, 2 * STATE_BYTES + (RANKS << 24)).make()
        port = free_port()
        ranks = [
            subprocess.Popen(
                [str(PYTHON), str(WORKER), str(folder), str(STATE_BYTES // RANKS), str(rounds)],
                env={
                    **os.environ,
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(RANKS),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "FALCON_CHECKPOINT_DIR": str(folder),
                    "PYTHONPATH": str(ROOT / "agent"),
                },
                stdout=subprocess.PIPE,
                text=True,
            )
            for rank in range(RANKS)
        ]
        outputs = [rank.communicate()[0] for rank in ranks]
    finally:
        shutil.rmtree(folder)
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed: see above")
    return [json.loads(output) for output in outputs]


def limits(ranks: list[Figures]) -> list[Limit]:
    ratio = max(rank["save"] / rank["copy"] for rank in ranks)
    load = 1000 * worst(ranks, "load")
    percent = 100 * worst(ranks, "share")
    return [
        Limit(what="save: training waits", measured=worst(ranks, "save"), most=MOST_SAVE_SECONDS, unit="s"),
        Limit(what="save ÷ plain copy of the same bytes", measured=ratio, most=MOST_RATIO, unit="×"),
        Limit(what="load as views, not verified", measured=load, most=MOST_LOAD_MILLISECONDS, unit="ms"),
        Limit(what="16 MiB a rank after each iteration of 1 s", measured=percent, most=MOST_PERCENT, unit="%"),
    ]


def worst(ranks: list[Figures], name: str) -> float:
    return max(rank[name] for rank in ranks)


def beside(ranks: list[Figures]) -> str:
    """Return what has no limit as a Markdown table."""
    cpu = worst(ranks, "behind_cpu") * RANKS * (1 << 30) / STATE_BYTES
    rows = [
        ("a plain copy", f"{worst(ranks, 'copy'):.3f} s"),
        ("`torch.save` to a tmpfs", f"{worst(ranks, 'torch_save'):.3f} s"),
        ("PyTorch's `dcp.save` to a tmpfs", f"{worst(ranks, 'dcp'):.3f} s"),
        ("PyTorch's `dcp.async_save`: training waits", f"{worst(ranks, 'dcp_async'):.3f} s"),
        ("load, every byte compared with its checksum", f"{worst(ranks, 'load_verified'):.3f} s"),
        ("checksums, behind training", f"{cpu:.2f} CPU seconds a GiB"),
        ("checksums and copy to a folder, behind training", f"{worst(ranks, 'folder_cpu'):.2f} CPU seconds a GiB"),
    ]
    return "| beside | |\n|---|---|\n" + "".join(f"| {what} | {figure} |\n" for what, figure in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="end with 1 where a limit is not kept")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each figure (default: %(default)s)")
    asked = parser.parse_args()
    if not PYTHON.is_file():
        parser.error("PyTorch is not installed: make torch-venv")
    ranks = measure(asked.rounds)
    found = limits(ranks)
    body = f"{table(found)}\n{beside(ranks)}"
    print(body)
    if asked.write:
        put(RESULTS, f"{body}\n{provenance('agent/falcon_torch', 'benchmarks/checkpoint')}")
    short = [limit for limit in found if not limit.kept]
    if asked.check and short:
        print("short of the limits:\n" + table(short))
    return 1 if asked.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
