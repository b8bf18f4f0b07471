"""What is lost, and from where each rank's state comes back byte for byte: real ranks, and agents over real TLS."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from falcon_core.wire.launcher.launch import CONTROL_FILE
from falcon_core.wire.saves.checkpoint import PAGE_BYTES, Parts, unpack_parts
from falcon_core.wire.saves.peers import PeerPod, Peers
from tests.integration.agent.checkpoints.test_copies import SIZE
from tests.integration.agent.checkpoints.test_copying import Pod, ready, tell, until
from tests.integration.agent.checkpoints.test_copying import make as make
from tests.integration.checkpoint.ranks import AGENT, PROGRAMS
from tests.integration.forking import PYTHON
from tests.integration.ports import free_port
from tests.integration.shim.memory import memory_cgroup, oom_kills

SECONDS = 120.0
MEMORY_LIMIT_BYTES = 192 << 20
OOM_KILLS = 5
TREE = Path(__file__).parents[3]
pytestmark = pytest.mark.timeout(300)
Make = Callable[[str, int], Pod]
Said = dict[str, Any]


class Ranks:
    """Lives of ranks: each begins with a load."""

    def __init__(self) -> None:
        if not PYTHON.is_file():
            pytest.fail("PyTorch is not installed: run the tests through make test-integration")
        self._server = subprocess.Popen(
            [str(PYTHON), "-W", "ignore", str(PROGRAMS / "shards.py")],
            env={**os.environ, "PYTHONPATH": str(AGENT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self._text = b""

    def live(
        self,
        pods: list[Pod],
        *steps: int,
        folder: Path | None = None,
        generation: int = 1,
        forever: bool = False,
        cgroup: Path | None = None,
    ) -> list[Said]:
        """Let the ranks of a job's pods load, and save these steps; return what they say, by rank."""
        port = str(free_port())
        for pod in pods:
            environ = {
                "RANK": str(pod.rank),
                "LOCAL_RANK": "0",
                "WORLD_SIZE": str(len(pods)),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "FALCON_GENERATION": str(generation),
                "FALCON_CHECKPOINT_DIR": str(pod.store.buffers(0)[0].parent),
                "FALCON_CHECKPOINT_COPIES": "1",
                "FALCON_CONTROL": str(pod.run_dir.path / CONTROL_FILE),
            }
            life = {
                "environ": environ,
                "folder": None if folder is None else str(folder),
                "steps": steps,
                "forever": forever,
                "cgroup": None if cgroup is None else str(cgroup),
            }
            assert self._server.stdin is not None
            self._server.stdin.write(json.dumps(life).encode() + b"\n")
            self._server.stdin.flush()
        said = [self.said() for _ in pods]
        assert not [each["error"] for each in said if "error" in each]
        return sorted(said, key=lambda each: int(each["rank"]))

    def said(self) -> Said:
        """Return the next line that a life has printed."""
        assert self._server.stdout is not None
        while b"\n" not in self._text:
            there, _, _ = select.select([self._server.stdout], [], [], SECONDS)
            piece = os.read(self._server.stdout.fileno(), 65536) if there else b""
            assert piece, f"no rank has said anything within {SECONDS:.0f} s"
            self._text += piece
        line, self._text = self._text.split(b"\n", 1)
        found: Said = json.loads(line)
        return found

    def end(self) -> None:
        # A life that a failed test has left holds the pipe as well, and saves until it is killed.
        os.killpg(self._server.pid, signal.SIGKILL)
        self._server.communicate()


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    made = Ranks()
    assert made.said() == {"ready": True}
    yield made
    made.end()


def found(said: list[Said]) -> list[tuple[int, bool]]:
    """Return the step that each rank has loaded, and whether its bytes are those that were saved."""
    return [(each["step"], each["same"]) for each in said]


def remove(pod: Pod) -> None:
    """Take a pod's memory away, with all that it holds."""
    own = pod.store.buffers(0)[0].parent
    for path in [*own.iterdir(), *(own.parent / "copies").iterdir()]:
        path.unlink()


@pytest.mark.parametrize(("saves", "pause_seconds"), [(1, 0.0), (50, 2.0)], ids=["first copy", "rank 0 first"])
async def test_a_container_that_is_killed_whole_in_a_save_comes_back_from_its_neighbour(
    make: Make, ranks: Ranks, saves: int, pause_seconds: float
) -> None:
    """As by the kernel for its memory: rank and agent end in the same instant, and their pod is made again.

    Both ranks save as fast as they can before the first copy is made: it is of use all the same.
    """
    killed, keeper = make("killed", 0), make("keeper", 1)
    await ready(killed, keeper)
    lives = await asyncio.to_thread(ranks.live, [killed, keeper], 20, forever=True)
    tell([killed, keeper], {"killed": "keeper"})
    await until("it is copied", lambda: killed.told[1].get(0, 0) >= saves)
    copied = max(step for _, step in keeper.steps())
    # Rank 0 serves the store of the process group: the other rank no longer learns what is copied.
    for life in lives:
        os.kill(life["pid"], signal.SIGKILL)
        await asyncio.sleep(pause_seconds)
    killed.copying.take(Peers(epoch=2, generation=1, phase="Run", procs=1, pods=[]))
    remove(killed)

    successor = make("successor", 0)
    await ready(successor)
    tell([successor, keeper], {}, generation=2)
    await successor.fetched(2)
    first, second = found(await asyncio.to_thread(ranks.live, [successor, keeper], generation=2))
    assert first == second
    step, same = first
    assert same
    assert step >= copied - 1, "a rank may have been killed before it saved what another's copy has"


async def test_a_second_loss_after_ranks_went_on_from_a_step_before_the_newest_of_one(make: Make, ranks: Ranks) -> None:
    """Rank 0 was a save ahead when its keeper was lost: the next keeper needs the step that all ranks have."""
    ahead, lost = make("ahead", 0), make("lost", 1)
    await ready(ahead, lost)
    tell([ahead, lost], {"ahead": "lost", "lost": "ahead"})
    # Before that ranks save as fast as they like, and only the newest is copied.
    await until("saves wait for copies", lambda: ahead.told[0] and lost.told[0])
    await asyncio.to_thread(ranks.live, [ahead, lost], 20, 40)
    await until("both are copied", lambda: ahead.steps() == {(1, 20), (1, 40)})
    # As if rank 1 had been killed before it had saved this step.
    for path in (ahead.store.buffers(0)[0].parent.parent / "copies").iterdir():
        if unpack_parts(path.read_bytes()[:PAGE_BYTES], SIZE) == newest_of(lost):
            path.write_bytes(bytes(SIZE))
    assert ahead.steps() == {(1, 20)}
    remove(lost)

    second = make("second", 1)
    await ready(second)
    tell([ahead, second], {"ahead": "second", "second": "ahead"}, generation=2)
    await asyncio.gather(ahead.fetched(2), second.fetched(2))
    assert found(await asyncio.to_thread(ranks.live, [ahead, second], generation=2)) == [(20, True)] * 2
    await until("the step that was loaded is copied", lambda: ahead.told == (True, {0: 1}))
    remove(ahead)

    third = make("third", 0)
    await ready(third)
    tell([third, second], {}, generation=3)
    await asyncio.gather(third.fetched(3), second.fetched(3))
    assert found(await asyncio.to_thread(ranks.live, [third, second], generation=3)) == [(20, True)] * 2


def newest_of(pod: Pod) -> Parts:
    """Return the checkpoint that a pod's agent copies."""
    newest = pod.store.newest(0)
    assert newest is not None
    return newest[1]


async def test_a_rank_that_the_kernel_kills_for_its_memory_in_a_save_loses_that_save_alone(
    make: Make, ranks: Ranks
) -> None:
    """A real out-of-memory kill. The store's pages are charged to the agent, so they are not what the kernel frees."""
    pod = make("pod", 0)
    newest = 20
    assert found(ranks.live([pod], newest)) == [(0, None)]
    for generation in range(2, 2 + OOM_KILLS):
        with memory_cgroup(MEMORY_LIMIT_BYTES) as cgroup:
            (life,) = ranks.live([pod], newest + 1, generation=generation, forever=True, cgroup=cgroup)
            assert (life["step"], life["same"]) == (newest, True)
            await until("the kernel has killed it", lambda: oom_kills(cgroup) >= 1)
        steps = await asyncio.to_thread(ranks.live, [pod], generation=100 + generation)
        ((step, same),) = found(steps)
        assert same
        assert step > newest, "saves of the killed life are there"
        newest = step


async def test_a_neighbour_that_is_killed_during_the_copy_costs_nothing_and_the_next_is_filled(
    make: Make, ranks: Ranks, tmp_path: Path
) -> None:
    own = make("own", 0)
    keeper = started_keeper(tmp_path)
    try:
        assert keeper.stdin is not None
        said = tmp_path / "keeper" / "port"
        await until("the keeper listens", said.exists)
        await ready(own)
        told = Peers(
            epoch=1,
            generation=1,
            phase="Run",
            procs=1,
            bytes_per_second=1 << 18,  # a MiB goes at once, the next four seconds later
            pods=[
                PeerPod(uid="own", first_rank=0, host="127.0.0.1", port=own.report.port, holder="keeper"),
                PeerPod(uid="keeper", first_rank=1, host="127.0.0.1", port=int(said.read_text())),
            ],
        )
        keeper.stdin.write(msgspec.json.encode(told) + b"\n")
        keeper.stdin.flush()
        assert found(await asyncio.to_thread(ranks.live, [own], 20)) == [(0, None)]
        own.copying.take(told)
        held = list((tmp_path / "keeper" / "copies").iterdir())
        await until("the copy is under way", lambda: any(_has_bytes(path) for path in held))
    finally:
        keeper.kill()
        keeper.communicate()
    await until("it is said", lambda: own.report.why)
    assert own.told[1] == {}

    following = make("following", 1)
    await ready(following)
    tell([own, following], {"own": "following"}, generation=2)
    await until("the next is filled", lambda: following.steps() == {(0, 20)})
    remove(own)
    successor = make("successor", 0)
    await ready(successor)
    tell([successor, following], {}, generation=3)
    await successor.fetched(3)
    assert found(await asyncio.to_thread(ranks.live, [successor], generation=3)) == [(20, True)]


def started_keeper(root: Path) -> subprocess.Popen[bytes]:
    """Start pod "keeper", of rank 1, in a process of its own."""
    return subprocess.Popen(
        [sys.executable, str(PROGRAMS / "keeper.py"), str(root), "keeper", "1", str(root / "tls")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TREE), *sys.path])},
        stdin=subprocess.PIPE,
    )


def _has_bytes(path: Path) -> bool:
    """Check whether a copy's chunks have begun to arrive, and its records have not."""
    with path.open("rb") as file:
        return not any(file.read(64)) and any(file.read(1 << 20))


async def test_with_both_copies_of_a_shard_all_ranks_go_back_to_the_volume_and_say_so(
    make: Make, ranks: Ranks, tmp_path: Path
) -> None:
    volume = tmp_path / "volume"
    pods = [make(f"pod-{rank}", rank) for rank in range(3)]
    await ready(*pods)
    tell(pods, {"pod-0": "pod-1", "pod-1": "pod-2", "pod-2": "pod-0"})
    await asyncio.to_thread(ranks.live, pods, 20, folder=volume)
    await until("the first is copied", lambda: all(pod.told[1].get(pod.rank, 0) >= 1 for pod in pods))
    assert found(await asyncio.to_thread(ranks.live, pods, 40, generation=2)) == [(20, True)] * 3  # memory alone
    await until("so is the second", lambda: all(pod.told[1].get(pod.rank, 0) >= 2 for pod in pods))
    for lost in pods[:2]:
        remove(lost)
    left, news = pods[2], [make("new-0", 0), make("new-1", 1)]
    await ready(*news)
    now = [*news, left]
    tell(now, {}, generation=3)
    await asyncio.gather(*(pod.fetched(3) for pod in now))
    assert found(await asyncio.to_thread(ranks.live, now, folder=volume, generation=3)) == [(20, True)] * 3
    sources = [pod.copying.origin(pod.store.loaded(3)[0], 3).source for pod in now]
    assert sources == ["Folder", "Copy", "Memory"], "rank 0's own shard is on the volume alone"


@pytest.fixture
def small_volume(tmp_path: Path) -> Iterator[Path]:
    """Yield a file system with room for one checkpoint and a half."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4500k", "none", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {mounted.stderr.decode()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_full_volume_costs_the_files_alone_and_leaves_the_one_before(
    make: Make, ranks: Ranks, small_volume: Path
) -> None:
    pod = make("pod", 0)
    (said,) = await asyncio.to_thread(ranks.live, [pod], 20, 40, folder=small_volume)
    assert said["folder_failures"] == 1
    (warned,) = said["warned"]
    assert warned.startswith("rank 0's checkpoint of step 40 is in memory alone:")
    assert "No space left on device" in warned
    assert found(await asyncio.to_thread(ranks.live, [pod], folder=small_volume, generation=2)) == [(40, True)]
    remove(pod)
    fresh = make("fresh", 0)
    assert found(await asyncio.to_thread(ranks.live, [fresh], folder=small_volume, generation=2)) == [(20, True)]
