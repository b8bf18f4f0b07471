"""The shim in real PyTorch: what its ranks' rings say about known collectives."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from falcon_core.wire import ring
from falcon_core.wire.launcher.control import Mode, pack_control
from falcon_core.wire.ring import Flag, Kind, Op, Traffic
from tests.integration.ports import free_port
from tests.integration.shim.conftest import Start
from tests.integration.shim.launching import Launcher

PYTHON = Path(os.environ.get("FALCON_CACHE", "")) / "torch" / "venv" / "bin" / "python"
PROGRAMS = Path(__file__).parent / "programs"
PASSING = Path(os.environ.get("SHIM_TEST_OUT", "")) / "libpassing_gloo.so"
AGENT = Path(__file__).parents[3] / "agent"
GROUPS = 40  # of groups.py
TORCH_SECONDS = 150  # several imports of PyTorch on a shared core

pytestmark = pytest.mark.timeout(240)


def _train(start: Start, program: str, procs: int) -> Launcher:
    if not PYTHON.exists():
        pytest.fail(f"{PYTHON} is missing: run the tests through make test-integration")
    launcher = start(str(PYTHON), str(PROGRAMS / program))
    launcher.run(procs=procs, port=free_port())
    return launcher


def _rings(launcher: Launcher) -> dict[int, ring.RecordArray]:
    """Return each rank's records, oldest first."""
    found: dict[int, ring.RecordArray] = {}
    for path in sorted((launcher.run_dir / "launch" / "rings").glob("*.ring")):
        raw = path.read_bytes()
        header = ring.parse_header(raw)
        assert path.name == f"g{header.generation}-r{header.rank}-{header.pid}.ring"
        assert header.rank not in found, "one ring a rank: loaders and children are no ranks"
        records = np.frombuffer(raw[ring.HEADER_BYTES :], dtype=ring.RECORD_DTYPE)[: header.head]
        assert (records["seq"] == np.arange(1, header.head + 1)).all()
        assert (ring.checks(records) == records["check"]).all()
        found[header.rank] = records
    return found


def _told(records: ring.RecordArray) -> list[tuple[Op, int, int, int, int]]:
    calls = records[records["kind"] == Kind.BLOCKING]
    order = np.argsort(calls["t_start_ns"], kind="stable")
    return [
        (Op(int(c["op"])), int(c["comm"]), int(c["comm_seq"]), int(c["bytes"]), int(c["peer_or_root"]))
        for c in calls[order]
    ]


def test_each_collective_with_its_payload_root_and_communicator(start: Start) -> None:
    launcher = _train(start, "collectives.py", procs=3)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0, 0]
    rings = _rings(launcher)
    assert sorted(rings) == [0, 1, 2]
    for rank, records in rings.items():
        expected = [
            (Op.BARRIER, 1, 0, 0, -1),
            (Op.ALL_REDUCE, 1, 1, 4000, -1),
            (Op.BROADCAST, 1, 2, 4000, 1),
            (Op.REDUCE, 1, 3, 1200, 1),
            (Op.ALL_GATHER, 1, 4, 400, -1),
            (Op.GATHER, 1, 5, 200, 0),
            (Op.SCATTER, 1, 6, 80, 0),
            (Op.ALL_TO_ALL, 1, 7, 96, -1),
        ]
        if rank < 2:
            expected.append((Op.ALL_REDUCE, 2, 0, 40, -1))
        assert _told(records) == expected
        described = records[(records["kind"] == Kind.DESCRIPTOR) & (records["flags"] & Flag.ENDED == 0)]
        shapes = [(int(d["comm"]), int(d["group"]), int(d["peer_or_root"])) for d in described]
        assert shapes == [(1, 3, rank), (2, 2, rank)][: len(shapes)]
        assert len(shapes) == (2 if rank < 2 else 1)


def test_a_hook_of_another_tool_in_front_of_the_shim_is_called_once_a_call(start: Start) -> None:
    assert PASSING.exists(), "run the tests through make test-integration"
    # PyTorch's libraries are local to Python: the shim has to search for Gloo, and must not find the hook.
    command = ("sh", "-c", 'LD_PRELOAD="$2:$LD_PRELOAD" exec "$0" "$1"')
    launcher = start(*command, str(PYTHON), str(PROGRAMS / "collectives.py"), str(PASSING))
    launcher.run(procs=2, port=free_port())
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0], launcher.finish()
    assert launcher.finish()[1].count("passing_gloo: 2 all-reduces") == 2
    for records in _rings(launcher).values():
        calls = records[(records["kind"] == Kind.BLOCKING) & (records["op"] == Op.ALL_REDUCE)]
        assert len(calls) == 2


@pytest.mark.alone
def test_the_straggler_waits_least_and_no_child_is_a_rank(start: Start) -> None:
    launcher = _train(start, "training.py", procs=2)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0], launcher.finish()
    rings = _rings(launcher)
    assert sorted(rings) == [0, 1]
    waits = {}
    for rank, records in rings.items():
        reductions = records[(records["op"] == Op.ALL_REDUCE) & (records["bytes"] >= 64 * 64 * 4)]
        assert len(reductions) >= 20
        waits[rank] = float(np.median(reductions["duration_ns"][-15:]))
    assert waits[0] > 3 * waits[1], f"median durations {waits}: rank 1 slept, so rank 0 waited"


def test_a_dead_peers_exception_passes_through_and_is_recorded(start: Start) -> None:
    launcher = _train(start, "peer_dies.py", procs=3)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [(rank.exit_code, rank.signal) for rank in ended.ranks] == [(0, None), (None, 9), (0, None)]
    rings = _rings(launcher)
    out, _ = launcher.finish()
    assert out.splitlines() == ["RuntimeError", "RuntimeError"]
    for rank in (0, 2):
        calls = rings[rank][rings[rank]["op"] == Op.ALL_REDUCE]
        assert calls["flags"].tolist() == [0, Flag.FAILED]


def test_a_receive_from_anyone_is_counted_with_whom_it_came_from(start: Start) -> None:
    launcher = _train(start, "anyone.py", procs=3)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0, 0], launcher.finish()
    records = _rings(launcher)[0]
    received = records[records["op"] == Op.RECV]
    assert received["bytes"].tolist() == [40, 40, 40, 40]
    assert sorted(received["peer_or_root"].tolist()) == [1, 1, 2, 2]
    assert received["comm_seq"].tolist() == [0, 1, 2, 3]
    assert (received["comm"] == (1 | ring.POINT_TO_POINT)).all()
    assert (received["duration_ns"] > 0).all()
    path = next((launcher.run_dir / "launch" / "rings").glob("*-r0-*.ring"))
    raw = path.read_bytes()
    status = ring.parse_status(raw)
    counters = np.frombuffer(raw, ring.COUNTER_DTYPE, status.counters, status.counters_offset)
    for peer in (1, 2):
        pair = counters[counters["key"] == ring.counter_key(1, Traffic.RECV, peer)]
        assert pair["entered"].tolist() == pair["finished"].tolist() == [2]
    anyone = counters[counters["key"] == ring.counter_key(1, Traffic.RECV_ANY)]
    assert anyone["entered"].tolist() == anyone["finished"].tolist() == [4]


def test_each_group_is_a_communicator_of_its_own_wherever_it_lies(start: Start) -> None:
    launcher = _train(start, "groups.py", procs=2)
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0], launcher.finish()
    for records in _rings(launcher).values():
        descriptors = records[records["kind"] == Kind.DESCRIPTOR]
        over = descriptors["flags"] & Flag.ENDED != 0
        shown = descriptors[~over & (descriptors["comm"] < ring.POINT_TO_POINT)]
        assert shown["comm"].tolist() == list(range(1, GROUPS + 2))
        assert descriptors[over]["comm"].tolist()[:GROUPS] == list(range(2, GROUPS + 2)), "each ended before the next"
        calls = records[records["kind"] == Kind.BLOCKING]
        for turn in range(GROUPS):
            comm = turn + 2
            assert np.count_nonzero(calls["comm"] == comm) == (turn + 1 if turn % 2 == 0 else 0)
            assert np.count_nonzero(calls["comm"] == comm | ring.POINT_TO_POINT) == turn % 2


@pytest.mark.slow  # e2e failures/test_elastic follows the iterations of such groups
def test_a_group_that_is_reconfigured_is_a_new_communicator_on_all_ranks(start: Start, tmp_path: Path) -> None:
    program = (str(PROGRAMS / "elastic.py"), str(tmp_path))
    command = (str(PYTHON), "-m", "falcon_torch.elastic", "--procs", "3", *program)
    launcher = start(*command, options=("--launcher", "own"), environment={"PYTHONPATH": str(AGENT)})
    launcher.run(procs=3, port=free_port())
    ended = launcher.wait(state="Exited", timeout_seconds=2 * TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0], launcher.finish()
    for rank, records in _rings(launcher).items():
        described = records[records["kind"] == Kind.DESCRIPTOR]
        over = (described["flags"] & Flag.ENDED) != 0
        shapes = [(int(each["comm"]), int(each["group"]), int(each["peer_or_root"])) for each in described]
        # The ring of the rank that was killed has gone with it; its replacement has been in the last group only.
        made = [(1, 3, 1)] if rank == 1 else [(1, 3, rank), (2, 2, rank // 2), (3, 3, rank)]
        assert [shape for shape, ends in zip(shapes, over, strict=True) if not ends] == made
        assert [shape for shape, ends in zip(shapes, over, strict=True) if ends][:2] == made[:-1][:2]


def test_switched_off_by_the_control_file_nothing_is_recorded(start: Start) -> None:
    launcher = start(str(PYTHON), str(PROGRAMS / "collectives.py"))
    (launcher.run_dir / "agent" / "control").write_bytes(pack_control(Mode.OFF, 1))
    launcher.run(procs=2, port=free_port())
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0]
    for records in _rings(launcher).values():
        assert set(records["kind"].tolist()) <= {Kind.DESCRIPTOR}
    for path in (launcher.run_dir / "launch" / "rings").glob("*.ring"):
        raw = path.read_bytes()
        status = ring.parse_status(raw)
        counters = np.frombuffer(raw, ring.COUNTER_DTYPE, status.counters, status.counters_offset)
        world = counters[counters["key"] == ring.counter_key(1, Traffic.COLLECTIVE)]
        assert world["entered"].tolist() == world["finished"].tolist() == [8], "counted all the same"


def test_without_a_place_for_rings_training_goes_on(start: Start) -> None:
    launcher = start(
        "sh", "-c", 'rm -rf "$FALCON_RING_DIR"; exec "$0" "$1"', str(PYTHON), str(PROGRAMS / "collectives.py")
    )
    launcher.run(procs=2, port=free_port())
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [rank.exit_code for rank in ended.ranks] == [0, 0]
    assert "falcon" not in launcher.finish()[1]


def test_under_torchrun_its_workers_are_the_ranks(start: Start) -> None:
    torchrun = PYTHON.parent / "torchrun"
    launcher = start(str(torchrun), str(PROGRAMS / "collectives.py"), options=("--launcher", "own"))
    launcher.run(procs=2, port=free_port())
    ended = launcher.wait(state="Exited", timeout_seconds=TORCH_SECONDS)
    assert [(rank.local_rank, rank.exit_code) for rank in ended.ranks] == [(0, 0)], launcher.finish()
    rings = _rings(launcher)
    assert sorted(rings) == [0, 1], "the workers, not torchrun itself"
    assert [op for op, *_ in _told(rings[0])][:2] == [Op.BARRIER, Op.ALL_REDUCE]
