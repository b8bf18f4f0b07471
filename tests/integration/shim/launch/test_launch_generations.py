"""Generations one after the other, however the last one ended: no process of two of them ever lives at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from pathlib import Path

import pytest

from falcon_core.wire.launcher.launch import LaunchPlan
from tests.integration.shim.conftest import Start

GENERATIONS = 12
# Each rank and its two children, one in a session of its own, hold a lock for as long as they live.
PROGRAM = """
import fcntl, os, random, signal, sys, time
folder, generation, rank = sys.argv[1], os.environ["FALCON_GENERATION"], os.environ["RANK"]
held = os.open(f"{folder}/lock-{rank}", os.O_RDWR | os.O_CREAT)
try:
    fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(f"{folder}/overlap-{generation}-{rank}", "w").close()
made = random.Random(f"{generation} {rank}")
for session in (True, False):
    if os.fork() == 0:
        if session:
            os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(1000)
if made.random() < 0.25:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{folder}/up-{generation}-{rank}", "w").close()
if made.random() < 0.25:
    sys.exit(1)
time.sleep(1000)
"""


@pytest.mark.parametrize("launcher_kind", ["falcon", "own"])
def test_no_two_generations_live_at_once(start: Start, tmp_path: Path, launcher_kind: str) -> None:
    made = random.Random(launcher_kind)
    command = [sys.executable, "-S", "-c", PROGRAM, str(tmp_path)]
    procs = 3
    if launcher_kind == "own":
        own = Path(__file__).parents[1] / "programs" / "own_launcher.py"
        command = [sys.executable, "-S", str(own), str(procs), *command]
    launcher = start(*command, options=("--launcher", launcher_kind))
    launcher.wait(state="Idle")
    seen = 0
    for generation in range(1, GENERATIONS + 1):
        if made.random() < 0.3:  # the operator waits for every pod's acknowledgement first
            launcher.plan(LaunchPlan(generation=generation, phase="Stop"))
            launcher.wait(generation=generation, dead_below=generation, state="Stopped")
        launcher.run(generation=generation, procs=procs)
        up = [tmp_path / f"up-{generation}-{rank}" for rank in range(procs)]
        deadline = time.monotonic() + 60
        while not all(path.exists() for path in up):
            status = launcher.status()
            assert time.monotonic() < deadline, status
            assert status is not None
            assert status.dead_below >= seen
            seen = status.dead_below
            time.sleep(0.01)
        assert not list(tmp_path.glob("overlap-*"))
        status = launcher.wait(generation=generation, dead_below=generation)
        if made.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.kill(made.choice(status.ranks).pid, signal.SIGKILL)
    launcher.finish(generation=GENERATIONS)
    assert launcher.process.returncode == 0
