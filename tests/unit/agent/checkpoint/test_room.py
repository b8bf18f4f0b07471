"""Which file a new copy takes, and which copies a new pod fetches."""

from __future__ import annotations

import tempfile
from pathlib import Path

from falcon_agent.checkpoint.replication import chosen
from falcon_agent.checkpoint.server import Copies, Copy, room
from falcon_core.wire.saves.checkpoint import Parts
from falcon_core.wire.saves.peers import PeerPod


def parts(step: int, *, rank: int = 0, generation: int = 1, sequence: int | None = None) -> Parts:
    return Parts(rank, step, generation, step if sequence is None else sequence, 0, 1 << 20, 4096, 8192, 0)


def test_each_rank_of_a_former_ward_keeps_one_copy_while_another_can_make_room() -> None:
    """Its new keeper may have none yet. In the order of the files, rank 0 would lose both."""
    files = [
        Copy(Path(f"copy-{rank}.{number}"), parts(20 + 20 * number, rank=rank), sent_ns=number)
        for rank in (0, 1)
        for number in (0, 1)
    ]
    wards, busy = {2, 3}, set()
    for rank in (2, 3):
        taken = room(files, rank, wards, busy)
        assert taken is not None
        busy.add(taken)
    assert busy == {Path("copy-0.0"), Path("copy-1.0")}


def test_an_agent_that_starts_again_leaves_when_copies_were_sent() -> None:
    """On a tmpfs, as in a pod: there the kernel notes a change where it gives a file pages that it has already."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        copies = Copies(Path(folder), ranks=1, buffer_bytes=1 << 20)
        copies.make()
        first, second = (copy.path for copy in copies.files())
        copies.mark(second)
        copies.mark(first)
        sent = [copy.sent_ns for copy in copies.files()]
        assert sent[0] > sent[1]
        copies.make()
        assert [copy.sent_ns for copy in copies.files()] == sent


def steps(*offers: tuple[str, list[Parts]]) -> list[tuple[str, int, int]]:
    found = chosen((PeerPod(uid=uid, first_rank=0), has) for uid, has in offers)
    return [(pod.uid, each.generation, each.step) for pod, each in found]


def test_copies_of_a_later_generation_come_first_and_then_the_step_before() -> None:
    keeper = [parts(50), parts(60, generation=2)]
    former = [parts(90), parts(100)]  # left out when the ranks went back to step 50
    assert steps(("former", former), ("keeper", keeper))[:2] == [("keeper", 2, 60), ("keeper", 1, 50)]


def test_the_same_step_of_two_pods_fills_one_buffer_and_may_replace_a_damaged_one() -> None:
    assert steps(("a", [parts(40)]), ("b", [parts(20), parts(40)])) == [("a", 1, 40), ("b", 1, 20), ("b", 1, 40)]
    assert steps() == []
