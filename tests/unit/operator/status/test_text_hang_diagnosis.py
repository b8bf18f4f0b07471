"""A hang in words."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from falcon_core.recovery.model.failure import Awaited, HangFinding, HangIncident
from falcon_core.recovery.model.stored import Place
from falcon_core.wire.ring import Op
from falcon_operator.status.text.format import op_name, size
from falcon_operator.status.text.hang_diagnosis import describe_hang, finding_words

replace = msgspec.structs.replace


def awaited(*ranks: int, **fields: Any) -> list[Awaited]:
    return [
        Awaited(place=Place(rank=rank, pod_name=f"gpt2-{rank}", node=f"node-{rank}"), entered=7, **fields)
        for rank in ranks
    ]


FINDING = HangFinding(
    kind="NeverArrived",
    ranks=awaited(3),
    total=1,
    comm="tensor group of rank 2",
    members=2,
    number=7,
    waiting=1,
    entered=8,
    op=Op.REDUCE_SCATTER,
    size_bytes=3 << 19,
)
HANG = HangIncident(id="gpt2-1", since=0.0, generation=2, iterations=40, findings=[FINDING])


def why(**fields: Any) -> str:
    return describe_hang(replace(HANG, findings=[replace(FINDING, **fields)])).why


def test_the_call_and_its_communicator() -> None:
    assert finding_words(FINDING) == (
        "rank 3 never arrived at call 7 (reduce-scatter, 1.5 MiB) of the communicator of 2 ranks"
        " (tensor group of rank 2), in which 1 rank waits"
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"blocked_seconds": 45.2, "cpu": 0.0}, "uninterruptible sleep for 45 s: a device or a file system"),
        ({"cpu": 0.0}, "uses no CPU: it is stopped, or blocked"),
        (
            {"cpu": 0.0, "answers": False},
            "uses no CPU, and its interpreter does not answer, but other ranks' do: it is",
        ),
        ({"cpu": 0.01}, "hardly uses its CPU: a long checkpoint, or blocked"),
        ({"cpu": 1.04}, "uses 1.0 CPUs: it works, or spins"),
        (
            {"cpu": 0.01, "answers": False},
            "does not answer, but other ranks' do: its process is stopped, or about to end",
        ),
    ],
)
def test_what_the_process_does_meanwhile(fields: dict[str, Any], words: str) -> None:
    assert words in why(ranks=awaited(3, **fields))


def test_a_rank_inside_a_call_that_does_not_answer() -> None:
    note = describe_hang(
        replace(HANG, findings=[replace(FINDING, kind="Transfer", members=3, ranks=awaited(3, answers=False))])
    )
    assert "none returns; rank 3 did not answer a request for the stack; rank 3's interpreter" in note.why
    assert (note.rank, note.node) == (3, "node-3")


def test_of_an_unknown_process_nothing_is_said() -> None:
    assert why() == finding_words(FINDING)


def test_many_ranks_are_counted() -> None:
    note = describe_hang(replace(HANG, findings=[replace(FINDING, ranks=awaited(1, 3), total=5)]))
    assert note.where == "rank 1 (pod gpt2-1, node node-1), rank 3 (pod gpt2-3, node node-3) and 3 more"
    assert note.why.startswith("ranks 1, 3 and 3 more never arrived")
    assert (note.rank, note.node, note.severity) == (None, "", "SEV2")


def test_a_deadlock_and_a_hang_of_which_nothing_is_known() -> None:
    assert "because it is inside a call of another communicator: a deadlock" in why(kind="Deadlock")
    note = describe_hang(replace(HANG, findings=[]))
    assert note.where == "not known: all ranks are silent"
    assert "do not show" in note.why


def test_names_and_sizes() -> None:
    assert [op_name(op) for op in (Op.ALL_GATHER, Op.UNKNOWN, 200)] == ["all-gather", "collective", "collective"]
    assert [size(count) for count in (4, 1536, 1 << 20, 25 << 20, 3 << 40)] == [
        "4 B",
        "1.5 KiB",
        "1.0 MiB",
        "25 MiB",
        "3.0 TiB",
    ]


def test_what_silent_ranks_have_said_is_cited() -> None:
    hang = replace(HANG, said={3: "ValueError: bad shape (train.py:4 in main)"})
    assert (
        "; last error that rank 3 printed: ValueError: bad shape (train.py:4 in main)" in describe_hang(hang).evidence
    )
    assert "last error" not in describe_hang(HANG).evidence
