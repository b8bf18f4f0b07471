"""The checkpoint client with real PyTorch, in buffers that the agent made: every byte, whatever happens."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from falcon_agent.checkpoint.store import Store
from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.launcher.launch import CONTROL_FILE
from tests.integration import forking

PROGRAMS = Path(__file__).parent / "programs"
AGENT = Path(__file__).parents[3] / "agent"
LIVES = 200
MIB = 1 << 20
pytestmark = pytest.mark.timeout(400)


@contextlib.contextmanager
def made_store(memory_bytes: int) -> Iterator[Path]:
    """Yield a folder on a tmpfs with the buffers of one rank."""
    with tempfile.TemporaryDirectory(prefix="falcon-checkpoint-", dir="/dev/shm") as folder:
        Store(Path(folder), ranks=1, memory_bytes=memory_bytes).make()
        yield Path(folder)


@pytest.fixture
def store() -> Iterator[Path]:
    with made_store(128 * MIB) as folder:
        yield folder


@pytest.fixture
def small_store() -> Iterator[Path]:
    """Yield one with room for little more than two of the checkpoints: each life maps all of it."""
    with made_store(32 * MIB) as folder:
        yield folder


def run(program: str, *arguments: str, store: Path | None) -> forking.Ended:
    environment = {"PYTHONPATH": str(AGENT)}
    own = {"FALCON_CHECKPOINT_DIR": str(store)} if store is not None else {}
    return forking.run([str(PROGRAMS / program), *arguments], [own], environment, timeout_seconds=300)


IN_MEMORY = {
    "every_kind_of_value": "",
    "a_value_that_cannot_be_saved": "",
    "changes_after_a_save_are_not_in_it": "",
    "loaded_tensors_are_the_scripts_own": "",
    "a_flipped_bit_is_refused_by_name": "chunk 2 of 2 of rank 0's checkpoint of step 20 in {store}/rank-0.1 is",
    "a_save_that_has_no_checksums_yet_is_used_and_says_so": "step 10 in {store}/rank-0.0 has no checksums yet",
    "damaged_memory_falls_back_to_the_file_of_the_same_step": "chunk 1 of 1 of rank 0's checkpoint of step 20",
    "what_does_not_fit_goes_to_the_folder": "does not fit into a buffer",
    "a_folder_that_goes_away_costs_the_files_alone": "rank 0's checkpoint of step 5 is in memory alone",
    "a_save_waits_for_the_one_before_the_last": "",
    "a_save_is_skipped_where_it_would_wait": "",
    "a_second_process_does_not_get_the_buffers": "kept in memory: another process holds {store}/rank-0.lock",
    "nothing_is_there": "",
}
IN_FILES = {
    "every_kind_of_value": "",
    "a_value_that_cannot_be_saved": "",
    "changes_after_a_save_are_not_in_it": "",
    "a_file_that_was_cut_falls_back_to_the_one_before": "",
    "a_damaged_file_falls_back_to_the_one_before": "not loaded: chunk 1 of 1 of rank 0's checkpoint of step 30",
    "nothing_is_there": "",
    "neither_store_nor_folder": "",
    "ranks_that_come_and_go_are_refused": "",
}


@pytest.mark.parametrize("name", IN_MEMORY)
def test_with_a_store(name: str, store: Path, tmp_path: Path) -> None:
    ended = run("scenarios.py", name, str(tmp_path), store=store)
    (said,) = ended.stderr
    assert ended.codes == [0], said
    words = IN_MEMORY[name].format(store=store)
    assert said.count(words or "Traceback") == bool(words), said


@pytest.mark.parametrize("name", IN_FILES)
def test_with_plain_files(name: str, tmp_path: Path) -> None:
    ended = run("scenarios.py", name, str(tmp_path), store=None)
    (said,) = ended.stderr
    assert ended.codes == [0], said
    words = IN_FILES[name]
    assert said.count(words or "Traceback") == bool(words), said


@pytest.mark.parametrize("with_folder", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_rank_killed_at_any_instant_leaves_the_newest_step_byte_for_byte(
    small_store: Path, with_folder: bool
) -> None:
    # In memory as well: no kill of a process can take what a file system has, and each save would wait for the disk.
    folder = [str(small_store / "folder")] if with_folder else []
    ended = run("killed.py", str(LIVES), "1", *folder, store=small_store)
    assert ended.codes == [0], ended.stderr
    found = json.loads(ended.stdout[0])
    print(found)
    assert found["lives"] == LIVES
    assert found["saves"] > LIVES, "the lives got as far as saving"
    assert found["killed_in_a_save"] >= LIVES / 40, "the kills met saves"


def test_what_was_saved_since_a_number_was_spoilt_is_left_out_and_removed(store: Path, tmp_path: Path) -> None:
    run_dir, folder = RunDir(tmp_path / "run"), tmp_path / "saves"

    def life(generation: int, *arguments: str) -> forking.Ended:
        environment = {
            "PYTHONPATH": str(AGENT),
            "FALCON_CHECKPOINT_KEEP_OLDER": "1",
            "FALCON_CONTROL": str(run_dir.path / CONTROL_FILE),
            "FALCON_GENERATION": str(generation),
        }
        own = {"FALCON_CHECKPOINT_DIR": str(store)}
        ended = forking.run(
            [str(PROGRAMS / "rewound.py"), str(folder), *arguments], [own], environment, timeout_seconds=300
        )
        assert ended.codes == [0], ended.stderr
        return ended

    steps = ["10", "20", "30", "40", "50"]
    said = json.loads(life(1, *steps).stdout[0])
    assert said["loaded"] == 0
    assert said["files"] == [10, 20, 40, 50], "the two newest, and two older ones"
    run_dir.write_wanted_checkpoint(2, 0, said["before_ms"]["40"])
    rewound = json.loads(life(2, "25").stdout[0])
    assert rewound["loaded"] == 20, "both in memory are newer"
    assert rewound["files"] == [10, 20, 25], "a sound file is not pushed out by spoilt ones"
    assert json.loads(life(3).stdout[0])["loaded"] == 25, "the order was the second generation's"
    run_dir.write_wanted_checkpoint(4, 0, said["before_ms"]["10"])
    last = life(4)
    assert json.loads(last.stdout[0])["loaded"] == 25, "nothing is as old: no work is thrown away"
    assert "no checkpoint is as old as Falcon asks for: the newest is loaded" in last.stderr[0]
    assert json.loads(last.stdout[0])["files"] == [10, 20, 25]


def test_an_alarm_of_the_programs_is_no_damaged_checkpoint(store: Path, tmp_path: Path) -> None:
    done = run("interrupted.py", str(tmp_path), store=store)
    assert done.stdout[0].splitlines() == ["loads True [2]", "guard preempted", "file True"], done.stderr
