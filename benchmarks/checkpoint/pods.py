"""Pods of the benchmark: the folders of their memory, their agents, and the job's certificate."""

from __future__ import annotations

import datetime as dt
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.checkpoint.agent import JOB
from benchmarks.results import ROOT
from benchmarks.shim.jobs import SHIM
from falcon_agent.checkpoint import protocol
from falcon_agent.checkpoint.client import Peer
from falcon_agent.checkpoint.replication import credentials
from falcon_agent.checkpoint.store import Store
from falcon_core.wire.saves.peers import PeerPod, Peers
from falcon_operator.bus import certs

START_SECONDS: Final = 120.0


def certificate(folder: Path) -> Path:
    """Make a job's certificate in a new folder; return that."""
    now = dt.datetime.now(dt.UTC)
    jobs = certs.new_authority(now, certs.JOBS)
    pair = certs.issue_agents(jobs, JOB, now)
    folder.mkdir()
    for name, content in (("jobs-ca.crt", jobs.cert), ("tls.crt", pair.cert), ("tls.key", pair.key)):
        (folder / name).write_bytes(content)
    return folder


class Pod:
    """A pod's memory on a tmpfs, and its agent."""

    def __init__(self, folder: Path, ranks: int, memory_bytes: int, tls: Path) -> None:
        self.folder, self._tls = folder, tls
        (folder / "own").mkdir(parents=True)
        (folder / "copies").mkdir()
        self.store = Store(folder / "own", ranks, memory_bytes)
        self._agent = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.checkpoint.agent", str(folder), str(ranks), str(memory_bytes), str(tls)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )

    def ports(self) -> tuple[int, int]:
        """Return the ports of the copies and of plain streams, as soon as the agent listens."""
        deadline = time.monotonic() + START_SECONDS
        while not (self.folder / "ports").exists():
            if self._agent.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the agent of {self.folder.name} does not listen")
            time.sleep(0.02)
        return msgspec.json.decode((self.folder / "ports").read_bytes(), type=tuple[int, int])

    def take(self, told: Peers) -> None:
        """Tell the agent of the others."""
        assert self._agent.stdin is not None
        self._agent.stdin.write(msgspec.json.encode(told) + b"\n")
        self._agent.stdin.flush()

    def peer(self) -> Peer:
        """Return how another agent reaches this one."""
        context = protocol.client_context(*credentials(self._tls))
        return Peer(host="127.0.0.1", port=self.ports()[0], job_uid=JOB, context=context)

    def end(self) -> None:
        self._agent.kill()
        self._agent.communicate()


def acquaint(own: Pod | None, keeper: Pod, ranks: int) -> None:
    """Tell agents that pod "keeper" keeps the copies of pod "own", whose ranks are the first ``ranks``.

    ``own`` None: it has no agent.
    """
    told = Peers(
        epoch=1,
        generation=1,
        phase="Run",
        procs=ranks,
        pods=[
            PeerPod(uid="own", first_rank=0, host="127.0.0.1", port=own.ports()[0] if own else 0, holder="keeper"),
            PeerPod(uid="keeper", first_rank=ranks, host="127.0.0.1", port=keeper.ports()[0]),
        ],
    )
    for pod in (own, keeper):
        if pod is not None:
            pod.take(told)


def environment(pod: Path, **more: str) -> dict[str, str]:
    """Return what a rank's environment says of its pod."""
    if not SHIM.is_file():
        raise SystemExit(
            f"SHIM_OUT={os.environ.get('SHIM_OUT', '')} has no {SHIM.name}: run make shim, and name its folder"
        )
    return {
        **os.environ,
        "LD_PRELOAD": str(SHIM),  # as in a pod
        "PYTHONPATH": str(ROOT / "agent"),
        "FALCON_CHECKPOINT_DIR": str(pod / "own"),
        "FALCON_CONTROL": str(pod / "run" / "agent" / "control"),
        **more,
    }
