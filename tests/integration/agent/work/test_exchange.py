"""An exchange of roles, measured: real ranks on machines with a slow link, their rings, and what is decided by them."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from falcon_agent.rings.tracker import Tracker
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.reporting.messages import RankSignals
from tests.integration.agent.networks import Network, inside, machines, why_not
from tests.integration.agent.pod import PYTHON
from tests.integration.ports import free_port
from tests.integration.shim.launching import SHIM
from tests.unit.chain.pods import Operator

pytestmark = [pytest.mark.skipif(bool(why_not()), reason=why_not()), pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[3] / "e2e" / "scripts" / "stages.py"
RANKS = 4
RATE = "40mbit"  # 3 MB of gradients take 0.6 s
HEALTHY_STEPS, STEPS, MEASURED = 60, 20, 12
# What a step of stages.py puts on a link [bytes], from the model's dimensions (FALCON, appendix 9.2): equation 9, the
# gradients and a loss around a ring of two; equation 10, activations or their gradients of two micro-batches of eight.
DATA_BYTES = 4 * (3 * (512 * 512 + 512) + 1)
PIPELINE_BYTES = 4 * 2 * 8 * 512
LADDER = [{"type": "Ignore"}, {"type": "SwapNodes", "overheadSeconds": 1}]


class Training:
    """A life of the job: rank ``r`` runs on machine ``places[r]``, its rings followed as its agent would."""

    def __init__(self, folder: Path, network: Network, places: Sequence[int]) -> None:
        self.folder = folder
        port = free_port()
        self.processes = [self._start(network, places, rank, port) for rank in range(RANKS)]
        self.trackers = [Tracker(self._run_dir(rank)) for rank in range(RANKS)]

    def _run_dir(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}"

    def _start(self, network: Network, places: Sequence[int], rank: int, port: int) -> subprocess.Popen[bytes]:
        rings = self._run_dir(rank) / RINGS_DIR
        rings.mkdir(parents=True)
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_RANK": "0",
            "MASTER_ADDR": network.addresses[places[0]],
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "eth0",
            "LD_PRELOAD": str(SHIM / "libfalcon_shim.so"),
            "FALCON_RING_DIR": str(rings),
            "FALCON_GENERATION": "1",
        }
        command = [*inside(network.names[places[rank]]), str(PYTHON), str(SCRIPT), "--steps", "100000", "--every", "0"]
        log = (self._run_dir(rank) / "log").open("wb")
        return subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def stop(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(timeout=120)

    def poll(self) -> None:
        """Read what the ranks have recorded."""
        for rank, tracker in enumerate(self.trackers):
            rings = sorted((self._run_dir(rank) / RINGS_DIR).glob("*.ring"))
            tracker.poll([ring.name for ring in rings if f"-r{rank}-" in ring.name])

    def steps(self) -> list[dict[str, float]]:
        lines = (self._run_dir(2) / "log").read_text().splitlines()
        found = [json.loads(line) for line in lines if line.startswith("{")]
        return [line for line in found if line["event"] == "step"]

    def until(self, count: int) -> list[dict[str, float]]:
        """Follow the ranks until so many steps are done."""
        deadline = time.monotonic() + 240
        while len(found := self.steps()) < count:
            assert time.monotonic() < deadline, [(self._run_dir(rank) / "log").read_text()[-500:] for rank in range(4)]
            assert all(process.poll() is None for process in self.processes)
            self.poll()
            time.sleep(0.5)
        return found

    def seconds(self) -> float:
        """Return the median time of the newest steps."""
        return statistics.median(step["step_seconds"] for step in self.steps()[-MEASURED:])


def _link_bytes(rank: RankSignals) -> tuple[list[int], list[int]]:
    """Return what an iteration's collectives put on a link, by group, and its sends, by receiver."""
    return [each.link_bytes for each in rank.comms if each.link_bytes], [each.bytes for each in rank.sends]


@pytest.fixture
def network() -> Iterator[Network]:
    for needed in (SHIM / "libfalcon_shim.so", PYTHON):
        if not needed.is_file():
            pytest.fail(f"{needed} is missing: run the tests through make test-integration")
    with machines(RANKS) as made:
        yield made


def test_each_link_carries_the_bytes_that_the_models_dimensions_give(network: Network, tmp_path: Path) -> None:
    training = Training(tmp_path / "healthy", network, range(RANKS))
    try:
        for done in range(20, 260, 5):
            training.until(done)
            signals = [tracker.signals(1, asked=range(RANKS))[0] for tracker in training.trackers]
            if all(rank.period_calls for rank in signals):  # it is known which calls are an iteration
                break
    finally:
        training.stop()
    assert [_link_bytes(rank) for rank in signals] == [([DATA_BYTES], [PIPELINE_BYTES])] * RANKS


@pytest.mark.slow  # e2e/campaigns/test_layout_campaign leaves a slow link in the same way, on the cluster
@pytest.mark.alone  # ratios of times
def test_the_exchange_that_is_decided_by_real_rings_takes_the_slow_link_away(network: Network, tmp_path: Path) -> None:
    operator = Operator(RANKS, {"parallelism": {"pipeline": 2}, "mitigation": {"strategies": LADDER}})
    training = Training(tmp_path / "before", network, range(RANKS))
    try:
        training.until(HEALTHY_STEPS)
        healthy = training.seconds()
        network.limit_between(0, 1, RATE)
        done = HEALTHY_STEPS
        while operator.intent.membership.generation == 1:
            done += 4
            assert done < HEALTHY_STEPS + 200, operator.status
            training.until(done)
            signals = [tracker.signals(1)[0] for tracker in training.trackers]
            operator.look(signals)
        slow = training.seconds()
        losses = {step["step"]: step["loss"] for step in training.steps()}
    finally:
        training.stop()
    (note,) = operator.status.diagnoses
    assert note.where.startswith("the link between rank 0 (pod gpt2-0, node node-0), rank 1 (pod gpt2-1, node node-1)")
    places = [int(member.pod_uid.removeprefix("uid-")) for member in operator.intent.membership.members]
    assert {places.index(0), places.index(1)} in ({0, 3}, {1, 2}), "ranks that send each other nothing"

    training = Training(tmp_path / "after", network, places)
    try:
        training.until(STEPS + MEASURED)
        after = training.seconds()
        again = {step["step"]: step["loss"] for step in training.steps()}
    finally:
        training.stop()
    print(f"healthy {healthy:.3f} s, slow {slow:.3f} s, after the exchange {after:.3f} s; {note.done[-1].what}")
    assert after < slow - 0.7 * (slow - healthy)
    assert all(losses[step] == loss for step, loss in again.items() if step in losses), "whoever computes it"
