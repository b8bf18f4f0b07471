"""Ranks of a small PyTorch job, with or without the shim preloaded: what the shim's benchmarks run."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import IO

# TORCH_PYTHON: another interpreter with PyTorch, as on a machine whose image brings its own.
PYTHON = Path(os.environ.get("TORCH_PYTHON") or f"{os.environ.get('FALCON_CACHE', '')}/torch/venv/bin/python")
SHIM = Path(os.environ.get("SHIM_OUT", "")) / "libfalcon_shim.so"
RANKS = 2


def start(
    program: Path,
    arguments: list[str],
    folder: Path,
    *,
    shim: bool = True,
    more: Mapping[str, str] | None = None,
    count: int = RANKS,
    stderr: IO[bytes] | None = None,
) -> list[subprocess.Popen[bytes]]:
    """Start the ranks, on Gloo unless ``more`` in their environment says otherwise; rings go to ``folder``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = []
    for rank in range(count):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(count),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "FALCON_RING_DIR": str(folder),
            **(more or {}),
        }
        if shim:
            environment["LD_PRELOAD"] = str(SHIM)
        ranks.append(subprocess.Popen([str(PYTHON), str(program), *arguments], env=environment, stderr=stderr))
    return ranks


def wait(ranks: list[subprocess.Popen[bytes]], what: str) -> None:
    """Wait until all have ended.

    Raises:
        SystemExit: a rank failed.
    """
    codes = [rank.wait(timeout=600) for rank in ranks]
    if any(codes):
        raise SystemExit(f"{what}: a rank failed")
