"""Agents that copy their ranks' checkpoints to each other, and a new pod that fetches what the old pod had."""

from __future__ import annotations

import asyncio
import datetime as dt
import errno
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from falcon_agent.checkpoint import client, replication
from falcon_agent.checkpoint import protocol as wire
from falcon_agent.checkpoint.replication import Copying
from falcon_agent.checkpoint.store import Store
from falcon_agent.launch.run_dir import RunDir
from falcon_core.wire.agent_config import AgentConfig
from falcon_core.wire.launcher.launch import Phase
from falcon_core.wire.saves.checkpoint import LOADED_OFFSET, Loaded
from falcon_core.wire.saves.peers import CopiesReport, PeerPod, Peers
from falcon_operator.bus import certs
from tests.integration.agent.checkpoints.test_copies import JOB, SIZE, fill, flip
from tests.integration.ports import free_port
from tests.unit.client_format import client as client_format

WAIT_SECONDS = 120.0


class Pod:
    """One pod's agent, as far as copies go: one rank, which is the pod's number."""

    def __init__(self, root: Path, uid: str, rank: int, tls: Path, interface: str = "") -> None:
        for name in ("own", "copies"):  # there already where an agent of the pod has ended
            (root / uid / name).mkdir(parents=True, exist_ok=True)
        self.uid, self.rank = uid, rank
        self.run_dir = RunDir(root / uid)
        self.store = Store(root / uid / "own", ranks=1, memory_bytes=2 * SIZE)
        self.store.make()
        self.told: tuple[bool, dict[int, int]] = (False, {})  # without the generations
        self.copying = Copying(
            self.store,
            AgentConfig(
                namespace="ml",
                job="gpt2",
                job_uid=JOB,
                gateways=("gateway:7443",),
                gateway_tls_dir=str(tls),
                run_dir=str(root / uid),
                copies_dir=str(root / uid / "copies"),
                copies_interface=interface,
            ),
            pod_uid=uid,
            on_copied=self.take,
            were_on=self.run_dir.makes_copies(),
        )
        self.copying.start()

    def take(self, on: bool, ranks: Mapping[int, tuple[int, int]], sent: int) -> None:
        self.told = (on, {rank: sequence for rank, (_, sequence) in ranks.items()})
        self.run_dir.write_copied(on, ranks, sent)

    def save(self, step: int, number: int = 0, generation: int = 1) -> bytes:
        return fill(self.store.buffers(0)[number], step, rank=self.rank, generation=generation)

    def note_loaded(self, generation: int, step: int) -> None:
        """Note, as the rank does, what it has loaded."""
        record = client_format.pack_loaded(generation=generation, rank=self.rank, step=step, source=1)
        with self.store.buffers(0)[0].open("r+b") as file:
            os.pwrite(file.fileno(), record, LOADED_OFFSET)

    def end(self) -> None:
        """End the agent: its copies and what it has told the ranks stay."""
        self.copying._loop.call_soon_threadsafe(self.copying._loop.stop)
        self.copying._thread.join()

    async def fetched(self, generation: int) -> None:
        """Get ready for the ranks of a generation, as the agent does."""
        self.store.forget_others(self.rank)
        await self.copying.fetched(generation, self.rank)

    @property
    def report(self) -> CopiesReport:
        return self.copying.report

    def steps(self) -> set[tuple[int, int]]:
        return {(held.rank, held.step) for held in self.report.held}


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Pod]:
    now = dt.datetime.now(dt.UTC)
    jobs = certs.new_authority(now, certs.JOBS)
    pair = certs.issue_agents(jobs, JOB, now)
    tls = tmp_path / "tls"
    tls.mkdir()
    for name, content in (("jobs-ca.crt", jobs.cert), ("tls.crt", pair.cert), ("tls.key", pair.key)):
        (tls / name).write_bytes(content)
    return lambda uid, rank, **options: Pod(tmp_path, uid, rank, tls, **options)


def tell(pods: list[Pod], keepers: dict[str, str], *, generation: int = 1, phase: Phase = "Run") -> None:
    """Tell the agents of each other, as the operator does by their reports."""
    told = Peers(
        epoch=1,
        generation=generation,
        phase=phase,
        procs=1,
        pods=[
            PeerPod(
                uid=pod.uid,
                first_rank=pod.rank,
                host=pod.report.host or "127.0.0.1",
                port=pod.report.port,
                holder=keepers.get(pod.uid, ""),
                sources=[other.uid for other in pods if pod.rank in {rank for rank, _ in other.steps()}],
            )
            for pod in pods
        ],
    )
    for pod in pods:
        pod.copying.take(told)


async def until(what: str, look: Callable[[], object]) -> None:
    for _ in range(int(WAIT_SECONDS / 0.05)):
        if look():
            return
        await asyncio.sleep(0.05)
    pytest.fail(f"{what}: not within {WAIT_SECONDS:.0f} s")


async def ready(*pods: Pod) -> None:
    await until("the agents listen", lambda: all(pod.report.port for pod in pods))


async def test_a_new_pod_gets_what_its_predecessor_had_saved(make: Callable[..., Pod]) -> None:
    lost, keeper = make("lost", 0), make("keeper", 1)
    await ready(lost, keeper)
    tell([lost, keeper], {"lost": "keeper", "keeper": "lost"})
    older = lost.save(20)
    await until("the first is copied", lambda: lost.told == (True, {0: 20}))
    newer = lost.save(40, number=1)
    await until("both are copied", lambda: keeper.steps() == {(0, 20), (0, 40)})
    await until("the ranks may know it", lambda: lost.told == (True, {0: 40}))
    assert lost.report.why == ""

    successor = make("successor", 0)
    await ready(successor)
    keeper.save(40)
    tell([successor, keeper], {"successor": "keeper", "keeper": "successor"}, generation=2)
    await successor.fetched(2)
    assert sorted(path.read_bytes() == newer for path in successor.store.buffers(0)) == [False, True]
    assert sorted(path.read_bytes() == older for path in successor.store.buffers(0)) == [False, True]
    await until("the keeper's own goes to the new pod", lambda: successor.steps() == {(1, 40)})
    assert successor.copying.origin(Loaded(0, 40, "Memory"), 2) == Loaded(0, 40, "Copy", "keeper")
    assert successor.copying.origin(Loaded(0, 40, "Folder"), 2) == Loaded(0, 40, "Folder"), "it was not used"
    assert successor.copying.origin(Loaded(0, 60, "Memory"), 3) == Loaded(0, 60, "Memory"), "a later life found its own"


async def test_pods_that_kept_each_others_copies_exchange_roles_without_the_network(
    make: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make("first", 0), make("second", 1)
    await ready(first, second)
    tell([first, second], {"first": "second", "second": "first"})
    saved = {0: first.save(20), 1: second.save(20)}
    await until("both are copied", lambda: (first.told, second.told) == ((True, {0: 20}), (True, {1: 20})))

    async def unreachable(*_: object) -> bytes:
        pytest.fail("a peer was asked for a copy")

    monkeypatch.setattr(client, "fetch", unreachable)
    first.rank, second.rank = 1, 0
    tell([first, second], {"first": "second", "second": "first"}, generation=2)
    await asyncio.gather(first.fetched(2), second.fetched(2))
    assert [pod.store.buffers(0)[0].read_bytes() == saved[pod.rank] for pod in (first, second)] == [True, True]
    assert first.copying.origin(Loaded(1, 20, "Memory"), 2) == Loaded(1, 20, "Copy", "first")


async def test_an_own_copy_that_is_damaged_comes_from_another_pod(make: Callable[..., Pod], tmp_path: Path) -> None:
    first, second, third = make("first", 0), make("second", 1), make("third", 2)
    await ready(first, second, third)
    tell([first, second, third], {"first": "second"})
    saved = first.save(20)
    await until("it is copied", lambda: second.steps() == {(0, 20)})
    tell([first, second, third], {"first": "third"})
    await until("it is copied again", lambda: third.steps() == {(0, 20)})
    (copy,) = [path for path in sorted((tmp_path / "second" / "copies").iterdir()) if path.read_bytes() == saved]
    flip(copy, SIZE // 2)
    second.rank = 0
    tell([second, third], {}, generation=2)
    await second.fetched(2)
    assert second.store.buffers(0)[0].read_bytes() == saved
    assert second.copying.origin(Loaded(0, 20, "Memory"), 2) == Loaded(0, 20, "Copy", "third")


async def test_two_pods_of_which_neither_kept_the_others_copies_may_be_lost_at_once(
    make: Callable[..., Pod],
) -> None:
    ring = [make(f"pod-{rank}", rank) for rank in range(4)]
    await ready(*ring)
    tell(ring, {f"pod-{rank}": f"pod-{(rank + 1) % 4}" for rank in range(4)})
    saved = {pod.uid: pod.save(20 + pod.rank) for pod in ring}
    await until("all are copied", lambda: all(pod.told == (True, {pod.rank: 20 + pod.rank}) for pod in ring))

    left, news = [ring[1], ring[3]], [make("new-0", 0), make("new-2", 2)]
    await ready(*news)
    now = sorted([*left, *news], key=lambda pod: pod.rank)
    keepers = {pod.uid: now[(place + 1) % 4].uid for place, pod in enumerate(now)}
    tell(now, keepers, generation=2)
    await asyncio.gather(*(pod.fetched(2) for pod in now))
    for pod, lost in zip(news, ("pod-0", "pod-2"), strict=True):
        assert saved[lost] in [path.read_bytes() for path in pod.store.buffers(0)], "byte for byte"
        assert pod.copying.origin(Loaded(pod.rank, 20 + pod.rank, "Memory"), 2).keeper == f"pod-{pod.rank + 1}"
    assert all(saved[pod.uid] in [path.read_bytes() for path in pod.store.buffers(0)] for pod in left)
    await until("the new pods keep what the lost ones kept", lambda: news[0].steps() == {(3, 23)})


async def test_the_ranks_wait_for_the_word_of_their_own_generation(make: Callable[..., Pod]) -> None:
    lost, keeper = make("lost", 0), make("keeper", 1)
    await ready(lost, keeper)
    tell([lost, keeper], {"lost": "keeper"})
    saved = lost.save(20)
    await until("it is copied", lambda: keeper.steps() == {(0, 20)})
    successor = make("successor", 0)
    await ready(successor)
    tell([successor, keeper], {}, generation=2, phase="Stop")
    fetching = asyncio.create_task(successor.fetched(2))
    await asyncio.sleep(0.3)
    assert not fetching.done(), "not all pods' reports are known before the generation runs"
    tell([successor, keeper], {}, generation=2)
    await fetching
    assert saved in [path.read_bytes() for path in successor.store.buffers(0)]


async def test_what_a_rank_holds_itself_is_never_overwritten(make: Callable[..., Pod]) -> None:
    own, keeper = make("own", 0), make("keeper", 1)
    await ready(own, keeper)
    tell([own, keeper], {"own": "keeper"})
    own.save(20)
    await until("it is copied", lambda: keeper.steps() == {(0, 20)})
    tell([own, keeper], {}, generation=2)
    kept = own.save(40)
    await own.fetched(2)
    assert own.store.buffers(0)[0].read_bytes() == kept
    assert own.copying.origin(Loaded(0, 40, "Memory"), 2) == Loaded(0, 40, "Memory")


async def test_pods_that_exchange_their_roles_get_each_others_state(make: Callable[..., Pod]) -> None:
    """Two of three pods: what one of them needs is with the third, what the other needs it keeps itself."""
    pods = [make(f"pod-{rank}", rank) for rank in range(3)]
    await ready(*pods)
    keepers = {"pod-0": "pod-1", "pod-1": "pod-2", "pod-2": "pod-0"}
    tell(pods, keepers)
    older = [pod.save(20, number=0) for pod in pods]
    await until("all have copies", lambda: [pod.told[1] for pod in pods] == [{0: 20}, {1: 20}, {2: 20}])
    newer = [pod.save(40, number=1) for pod in pods]
    await until("of both", lambda: [pod.told[1] for pod in pods] == [{0: 40}, {1: 40}, {2: 40}])

    pods[0].rank, pods[1].rank = 1, 0
    roles = {"pod-1": "pod-0", "pod-0": "pod-2", "pod-2": "pod-1"}  # again, each to the next role's pod
    tell(pods, roles, generation=2, phase="Stop")
    await asyncio.sleep(0.5)  # the third pod's state may come to where a copy is still needed
    assert pods[1].steps() == {(0, 20), (0, 40)}
    tell(pods, roles, generation=2)
    await asyncio.gather(*(pod.fetched(2) for pod in pods))
    for pod, rank in ((pods[0], 1), (pods[1], 0), (pods[2], 2)):
        held = {path.read_bytes() for path in pod.store.buffers(0)}
        assert held == {older[rank], newer[rank]}, f"rank {rank}"
    origins = [pod.copying.origin(Loaded(pod.rank, 40, "Memory"), 2) for pod in pods]
    assert [each.keeper for each in origins] == ["pod-2", "pod-1", ""]
    for pod in pods:
        pod.note_loaded(2, 40)
    await until("the copies follow", lambda: pods[1].steps() >= {(2, 40)} and pods[0].steps() >= {(0, 40)})


async def test_the_first_start_waits_for_nobody(make: Callable[..., Pod]) -> None:
    alone = make("alone", 0)
    await asyncio.wait_for(alone.fetched(1), 1.0)


async def test_why_nothing_is_copied_is_said_and_no_save_waits_for_it(make: Callable[..., Pod]) -> None:
    pod, keeper = make("pod", 0), make("keeper", 1)
    await ready(pod, keeper)
    pod.save(20)
    await until("no keeper is known", lambda: pod.report.why == "not known yet which pod keeps them")
    tell([pod, keeper], {})
    await until("no pod keeps them", lambda: pod.report.why == "no other pod is there to keep them")
    nowhere = PeerPod(uid="keeper", first_rank=1, host="127.0.0.1", port=free_port())
    told = Peers(
        epoch=1,
        generation=1,
        phase="Run",
        procs=1,
        pods=[PeerPod(uid="pod", first_rank=0, holder="keeper"), nowhere],
    )
    pod.copying.take(told)
    await until("it cannot be reached", lambda: "cannot be reached" in pod.report.why)
    assert pod.told == (False, {})
    tell([pod, keeper], {"pod": "keeper"})
    await until("it is copied after all", lambda: pod.told == (True, {0: 20}))


async def test_a_pod_that_ends_waits_until_its_newest_checkpoints_have_copies(make: Callable[..., Pod]) -> None:
    pod, keeper = make("pod", 0), make("keeper", 1)
    await ready(pod, keeper)
    await asyncio.wait_for(pod.copying.finished(), 1.0)  # nothing has been saved
    tell([pod, keeper], {"pod": "keeper"})
    await until("copies are made", lambda: pod.report.why == "")
    pod.save(20)
    await asyncio.wait_for(pod.copying.finished(), WAIT_SECONDS)
    assert keeper.steps() == {(0, 20)}


async def test_where_no_copy_can_be_made_it_does_not_wait_for_long(
    make: Callable[..., Pod], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replication, "IN_VAIN_SECONDS", 0.2)
    pod = make("pod", 0)
    pod.save(20)
    await asyncio.wait_for(pod.copying.finished(), WAIT_SECONDS)
    assert pod.report.why


async def test_an_earlier_leaders_word_is_ignored(make: Callable[..., Pod]) -> None:
    pod, keeper = make("pod", 0), make("keeper", 1)
    await ready(pod, keeper)
    tell([pod, keeper], {"pod": "keeper"}, generation=3)
    tell([pod, keeper], {}, generation=2)
    pod.save(20)
    await until("it is copied", lambda: keeper.steps() == {(0, 20)})


async def test_a_limit_holds_for_all_streams_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the pauses, not the clock: of three pieces at once, each waits for those before it."""
    pauses: list[float] = []

    async def pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(wire.asyncio, "sleep", pause)
    monkeypatch.setattr(wire.time, "monotonic", lambda: 100.0)
    pace = wire.Pace(bytes_per_second=1000)
    for _ in range(3):
        await pace.take(500)
    assert pauses == [0.0, 0.5, 1.0]
    pace.bytes_per_second = 0
    await pace.take(1 << 30)
    assert len(pauses) == 3, "no limit, no pause"


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_all_addresses_of_a_pod_answer_at_the_one_port(make: Callable[..., Pod], host: str) -> None:
    pod = make("pod", 0)
    await ready(pod)
    try:
        _, writer = await asyncio.open_connection(host, pod.report.port)
    except OSError as error:
        if host == "::1" and error.errno in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
            pytest.skip(f"this machine has no IPv6: {error}")
        raise
    writer.close()


# -- the interface that the job names --------------------------------------------------------------------------------


@pytest.fixture
def interface() -> Iterator[Callable[[str], str]]:
    """Add a network interface with an address; the second time the address alone."""
    name = f"fc{os.getpid()}"

    def add(address: str) -> str:
        if name not in {known for _, known in socket.if_nameindex()}:
            subprocess.run(["ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p"], check=True)
            for end in (name, f"{name}p"):
                subprocess.run(["ip", "link", "set", end, "up"], check=True)
        if address:
            subprocess.run(["ip", "address", "add", address, "dev", name, *NO_PROBE[":" in address]], check=True)
        return name

    yield add
    subprocess.run(["ip", "link", "delete", name], check=True)


NO_PROBE = {False: [], True: ["nodad"]}  # an IPv6 address cannot be used before the kernel has asked for its like


@pytest.mark.parametrize("address", ["10.231.77.1", "fd00:231:77::1"])
async def test_copies_go_over_the_interface_that_the_job_names_alone(
    make: Callable[..., Pod], interface: Callable[[str], str], address: str
) -> None:
    name = interface(f"{address}/{128 if ':' in address else 32}")
    own, keeper = make("own", 0), make("keeper", 1, interface=name)
    await ready(own, keeper)
    assert keeper.report.host == address
    tell([own, keeper], {"own": "keeper"})
    own.save(20)
    await until("the copy is made", lambda: keeper.steps() == {(0, 20)})
    with pytest.raises(OSError, match="Connect call failed"):
        await asyncio.open_connection("127.0.0.1", keeper.report.port)


async def test_an_interface_that_comes_late_is_waited_for_and_training_is_not_held_up(
    make: Callable[..., Pod], interface: Callable[[str], str]
) -> None:
    name = interface("")
    nowhere, late = make("nowhere", 0, interface="net7"), make("late", 1, interface=name)
    await until("the problem is said", lambda: "net7" in nowhere.report.why and name in late.report.why)
    assert nowhere.report.why.startswith("spec.checkpoint.interface: net7 is none of this pod's, which are ")
    assert late.report.why == (
        f"spec.checkpoint.interface: {name} has no address; name an interface that all pods of the job have"
    )
    assert (late.report.port, late.told[0]) == (0, False), "no save waits for a copy"
    interface("10.231.77.2/32")
    await ready(late)
    assert (late.report.host, nowhere.report.port) == ("10.231.77.2", 0)
