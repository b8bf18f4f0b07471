"""What a checkpoint in memory costs training, and how fast a lost one is back, beside plain copies of the same bytes.

    make torch-venv shim && SHIM_OUT=… python -m benchmarks.checkpoint            # the tables
    make torch-venv shim && SHIM_OUT=… python -m benchmarks.checkpoint --write    # writes them to RESULTS.md
    make torch-venv shim && SHIM_OUT=… python -m benchmarks.checkpoint --check    # exit code 1 where a limit is missed

SHIM_OUT says where ``make shim`` put the library that is preloaded into every rank.

Two ranks, each with its half of 1 GiB in tensors of 8 MiB, in buffers that the agent's store has made on /dev/shm: by
themselves, and again with an agent that copies each save to another pod's agent over TLS. Each figure is the median of
the rounds of a rank, and of the ranks the larger one. Then a shard of 1 GiB moves (``moving``). Needs 12 GiB of memory,
and root for the volume's rate.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.checkpoint import moving
from benchmarks.checkpoint.pods import Pod, acquaint, certificate, environment
from benchmarks.limits import Limit, table
from benchmarks.results import provenance, put
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
MOST_FETCH: Final = 1.3
MEMORY_BYTES: Final = 2 * STATE_BYTES + (RANKS << 24)
Figures = dict[str, float]


def measure(rounds: int) -> tuple[list[Figures], list[Figures], Figures]:
    """Return the figures of each rank without and with copies in another pod, and those of a shard that moves, seconds.

    Raises SystemExit where a rank fails.
    """
    with _folder() as folder:
        (folder / "own").mkdir()
        Store(folder / "own", RANKS, MEMORY_BYTES).make()
        alone = _ranks("alone", folder, rounds)
    with _folder() as folder:
        tls = certificate(folder / "tls")
        own, keeper = (Pod(folder / name, RANKS, MEMORY_BYTES, tls) for name in ("own", "keeper"))
        try:
            own.store.make()
            acquaint(own, keeper, RANKS)
            copied = _ranks("copied", folder / "own", rounds, FALCON_CHECKPOINT_COPIES="1")
        finally:
            own.end()
            keeper.end()
    with _folder() as folder:
        return alone, copied, moving.measure(PYTHON, folder)


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="falcon-checkpoint-", dir="/dev/shm") as name:
        yield Path(name)


def _ranks(what: str, pod: Path, rounds: int, **more: str) -> list[Figures]:
    """Run the ranks of a pod; return their figures."""
    port = str(free_port())
    ranks = [
        subprocess.Popen(
            [str(PYTHON), str(WORKER), what, str(pod / "own"), str(STATE_BYTES // RANKS), str(rounds)],
            env=environment(
                pod,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(RANKS),
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=port,
                **more,
            ),
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        raise SystemExit("a rank failed: see above")
    return [json.loads(output) for output in outputs]


def limits(alone: list[Figures], copied: list[Figures], moved: Figures) -> list[Limit]:
    """Return what is promised."""
    saves = [
        limit
        for where, ranks in (("", alone), (", with copies in another pod", copied))
        for limit in (
            Limit(what=f"save{where}: training waits", measured=worst(ranks, "save"), most=MOST_SAVE_SECONDS, unit="s"),
            Limit(what=f"save{where} ÷ plain copy of the same bytes", measured=ratio(ranks), most=MOST_RATIO, unit="×"),
        )
    ]
    load, percent = 1000 * worst(alone, "load"), 100 * worst(alone, "share")
    fetch = moved["fetch"] / moved["raw"]
    return [
        *saves,
        Limit(what="load as views, not verified", measured=load, most=MOST_LOAD_MILLISECONDS, unit="ms"),
        Limit(what="16 MiB a rank after each iteration of 1 s", measured=percent, most=MOST_PERCENT, unit="%"),
        Limit(what="a lost shard of 1 GiB from its keeper ÷ plain copy", measured=fetch, most=MOST_FETCH, unit="×"),
    ]


def ratio(ranks: list[Figures]) -> float:
    return max(rank["save"] / rank["copy"] for rank in ranks)


def worst(ranks: list[Figures], name: str) -> float:
    return max(rank[name] for rank in ranks)


def beside(ranks: list[Figures], copied: list[Figures], moved: Figures) -> str:
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
        ("a save until its copies are in another pod, behind training", f"{worst(copied, 'copied'):.2f} s"),
        ("a lost shard of 1 GiB from its keeper, over one TLS stream", f"{moved['fetch']:.2f} s"),
        ("a plain copy of its bytes over such a stream", f"{moved['raw']:.2f} s"),
    ]
    return "| beside | |\n|---|---|\n" + "".join(f"| {what} | {figure} |\n" for what, figure in rows)


def ways(moved: Figures) -> str:
    """Return the two ways of a state from pod to pod as a Markdown table; a sentence where a volume has no rate."""
    if "volume_save" not in moved:
        return "The way through a volume was not measured: its rate cannot be set here (cgroup v1 and root).\n"
    memory = [moved["save"] + moved["checksums"], moved["put"] + moved["fetch"], moved["load"]]
    volume = [moved["volume_save"], 0.0, moved["volume_load"]]
    lines = ["| 1 GiB from pod to pod | saved | over the network | loaded | together |", "|---|---|---|---|---|"]
    rate = moving.VOLUME_BYTES_A_SECOND // 1_000_000
    for name, parts in (("through memory", memory), (f"through a volume of {rate} MB/s", volume)):
        lines.append(f"| {name} | " + " | ".join(f"{part:.2f} s" for part in (*parts, sum(parts))) + " |")
    times = sum(volume) / sum(memory)
    return "\n".join([*lines, "", f"Memory is {times:.1f} × as fast (FALCON, figure 19: 6.72 × on their disk).", ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="end with 1 where a limit is not kept")
    parser.add_argument("--write", action="store_true", help="write RESULTS.md")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of each figure (default: %(default)s)")
    asked = parser.parse_args()
    if not PYTHON.is_file():
        parser.error("PyTorch is not installed: make torch-venv")
    measured = measure(asked.rounds)
    found = limits(*measured)
    body = f"{table(found)}\n{beside(*measured)}\n{ways(measured[2])}"
    print(body)
    if asked.write:
        put(RESULTS, f"{body}\n{provenance('agent/falcon_torch', 'benchmarks/checkpoint')}")
    short = [limit for limit in found if not limit.kept]
    if asked.check and short:
        print("short of the limits:\n" + table(short))
    return 1 if asked.check and short else 0


if __name__ == "__main__":
    sys.exit(main())
