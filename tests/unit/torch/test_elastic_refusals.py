"""The ranks that are refused and do not end: who is killed, when, and what is left to the kernel."""

from __future__ import annotations

from tests.unit.client_format import elastic_refusals as refusals


class Store(dict[str, bytes]):
    """What the first pod's launcher keeps."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()

    def check(self, keys: list[str]) -> bool:
        return all(key in self for key in keys)


class Process:
    """A rank that no signal ends."""

    def __init__(self, pid: int) -> None:
        self.pid, self.kills = pid, 0

    def kill(self) -> None:
        self.kills += 1


def test_a_refused_process_is_killed_when_it_has_not_ended_and_then_left_to_the_kernel() -> None:
    store, hanging, other = Store(), Process(71), Process(72)
    found = refusals.Refusals({4: hanging, 5: other})
    found.look(store, 0.0)
    refusals.note(store, 4, 71)
    found.look(store, 100.0)
    found.look(store, 100.0 + refusals.ENDING_SECONDS)
    assert hanging.kills == 0, "it has its time to end by itself"
    found.look(store, 100.1 + refusals.KILL_SECONDS)
    assert (hanging.kills, found.abandoned) == (1, set())
    found.look(store, 100.1 + refusals.ABANDON_SECONDS)
    assert found.abandoned == {71}
    assert other.kills == 0


def test_a_replacement_is_not_killed_for_what_it_replaces() -> None:
    store, ranks = Store(), {4: Process(71)}
    found = refusals.Refusals(ranks)
    refusals.note(store, 4, 71)
    found.look(store, 0.0)
    ranks[4] = Process(73)
    found.look(store, 1000.0)
    assert ranks[4].kills == 0
