"""The recorder of real runs, shortened: real ranks, launchers, agents and a gateway on machines of namespaces."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evaluation.anomalies import recording
from evaluation.anomalies.real_runs import looks
from evaluation.anomalies.record import job, machines
from evaluation.anomalies.record.scenes import RANKS, SCENES
from falcon_core.wire.series import Phase, decode_chunk
from falcon_gateway import Chunk
from tests.integration.operator.cluster import until

WHY_NOT = machines.why_not() or job.why_not()
pytestmark = [
    pytest.mark.skipif(bool(WHY_NOT), reason=f"no run can be recorded: {WHY_NOT}"),
    pytest.mark.slow,  # two minutes; unit/anomalies/test_real_runs replays runs that were kept
]
SCENE = next(scene for scene in SCENES if scene.name == "fault-errors")
SECONDS = 100.0
# As the recorder's command does, but for the least time of a run. The minute that agents call a warm-up is longer than
# what such a run leaves of training: with "kept" it counts as training.
DRIVER = """
import sys
from pathlib import Path
from evaluation.anomalies.record import __main__ as record, job, machines
from evaluation.anomalies.record.scenes import SCENES
from falcon_core.wire.series import decode_chunk

folder, name, seconds, kept = Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]), sys.argv[4] == "kept"
hear = job.Listener.hear
def heard(self, chunk):
    hear(self, chunk)
    self.trains.add(chunk.pod_uid)
if kept:
    job.Listener.hear = heard
machines.prepare_network()
sys.exit(record.fill(folder, [scene for scene in SCENES if scene.name == name], seconds))
"""


@contextlib.contextmanager
def recording_into(folder: Path, seconds: float, *, kept: bool) -> Iterator[subprocess.Popen[str]]:
    """Yield a recorder, which ends its run where it has not ended by itself."""
    command = ["unshare", "--net", "--mount", sys.executable, "-c", DRIVER]
    asked = [str(folder), SCENE.name, str(seconds), "kept" if kept else "void"]
    recorder = subprocess.Popen([*command, *asked], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield recorder
    finally:
        recorder.terminate()
        recorder.wait(60)


def left_behind(pid: int) -> list[Path]:
    """Return the cgroups that a recorder has left."""
    return [path for each in machines.CONTROLLERS for path in (machines.CGROUPS / each).glob(f"falcon-record-{pid}*")]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "recordings"
    found.mkdir()
    return found


@pytest.mark.timeout(400)
def test_a_run_is_kept_with_the_messages_of_all_pods_and_made_once(folder: Path) -> None:
    with recording_into(folder, SECONDS, kept=True) as recorder:
        said, _ = recorder.communicate(timeout=300)
    assert recorder.returncode == 0, said
    truth, lane = recording.load(folder, SCENE.name)
    assert (truth.fault, truth.rank, truth.ranks, truth.metrics) == ("errors", SCENE.rank(), RANKS, ["error_lines"])
    assert truth.begin_seconds == pytest.approx(SCENE.begin(SECONDS), abs=10)
    times = [message.at_ms for message in lane.messages]
    assert times == sorted(times)
    assert 0 < times[0] <= times[-1] <= 1e3 * (SECONDS + 30)
    found: dict[str, set[int]] = {}
    for message in lane.messages:
        chunk = Chunk.FromString(message.chunk)
        series = decode_chunk(chunk.payload)
        assert {Phase.START, Phase.WARM_UP} >= set(series.phases) - {Phase.TRAINING}
        assert {"memory", "cpu"} <= set(series.metrics)
        found.setdefault(chunk.pod_uid, set()).update(rank for rank in series.ranks if rank >= 0)
    assert sorted(found.values(), key=min) == [{rank} for rank in range(RANKS)], "a pod of one rank each"
    assert all(not look.verdicts for look in looks(truth, lane)), "so short a run shows nothing"
    assert left_behind(recorder.pid) == []
    assert sorted(path.name for path in folder.iterdir()) == [f"{SCENE.name}.json", f"{SCENE.name}.lane.xz"]

    with recording_into(folder, SECONDS, kept=True) as again:
        said, _ = again.communicate(timeout=60)
    assert (again.returncode, said) == (0, ""), "it is there already"


def test_a_run_that_never_trained_and_one_that_is_ended_are_not_kept(folder: Path) -> None:
    with recording_into(folder, 10.0, kept=False) as void:
        said, _ = void.communicate(timeout=120)
    assert void.returncode == 1
    assert f"{SCENE.name}: not kept: only the pods [] trained before its fault" in said
    assert left_behind(void.pid) == []

    with recording_into(folder, SECONDS, kept=True) as ended:
        until(lambda: left_behind(ended.pid))
        time.sleep(5)
    assert ended.returncode != 0
    assert left_behind(ended.pid) == []
    assert list(folder.iterdir()) == []
