"""Results of real all-reduces, compared between ranks: a spoilt one is found, and the rank that differs is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from falcon_agent.rings.tracker import Tracker
from falcon_core.signals.job.result_differences import find_differences
from falcon_core.wire.launcher.control import Mode, pack_control
from falcon_core.wire.launcher.launch import RINGS_DIR
from falcon_core.wire.reporting.messages import Summary
from falcon_core.wire.reporting.reports import decode_summary, encode_summary
from falcon_core.wire.reporting.verification import RankResults
from tests.integration.ports import free_port
from tests.integration.shim.conftest import Start
from tests.integration.shim.test_torch import PYTHON, TORCH_SECONDS

PROGRAM = Path(__file__).parent / "programs" / "corrupted.py"
CORRUPTING = Path(os.environ.get("SHIM_TEST_OUT", "")) / "libcorrupting_gloo.so"
CALLS = 12  # two an iteration
# Tags of the spoilt results: PyTorch numbers the calls of a group from 0 on.
LAST_PART, FIRST_PART = 6, 8

pytestmark = pytest.mark.timeout(240)


def _results(run_dir: Path) -> list[RankResults]:
    """Return what the agent reports of the rings, as the operator reads it."""
    tracker = Tracker(run_dir)
    tracker.verify_every = 1
    tracker.poll([path.name for path in (run_dir / RINGS_DIR).glob("*.ring")])
    summary = Summary(pod_uid="p", sequence=1, unix_ns=1, generation=1, results=tracker.results(1))
    return decode_summary(encode_summary(summary, ()), "p").results


@pytest.mark.parametrize("ranks", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_the_rank_whose_result_differs_is_named_and_all_other_results_are_equal(start: Start, ranks: int) -> None:
    for needed in (PYTHON, CORRUPTING):
        if not needed.exists():
            pytest.fail(f"{needed} is missing: run the tests through make test-integration")
    # Behind the shim: where it looks for Gloo's own function, it takes the next one.
    command = ("sh", "-c", 'LD_PRELOAD="$LD_PRELOAD:$2" exec "$0" "$1" "$2"')
    launcher = start(*command, str(PYTHON), str(PROGRAM), str(CORRUPTING))
    (launcher.run_dir / "agent" / "control").write_bytes(pack_control(Mode.TRACK, 1, verify_every=1))
    launcher.run(procs=ranks, port=free_port())
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0] * ranks, launcher.finish()
    results = _results(launcher.run_dir)
    assert "rank 1: 2 results spoilt" in launcher.finish()[0]
    found = {each.first: each for each in find_differences(results, ranks)}
    assert sorted(found) == [LAST_PART, FIRST_PART]
    assert all(each.calls == 1 for each in found.values())
    # With two ranks it is not known who is right.
    assert found[LAST_PART].ranks == ((1,) if ranks > 2 else ()), "it alone received that part wrong"
    # Rank 1 passed the other part on: all agree on it but rank 2, to which it belongs, and which is right.
    assert found[FIRST_PART].ranks == ((2,) if ranks > 2 else ()), "who differs is not always who is wrong"
    compared = {digest.first for each in results for digest in each.digests}
    assert compared >= set(range(CALLS - 8, CALLS)), "the newest calls of both tensors"
