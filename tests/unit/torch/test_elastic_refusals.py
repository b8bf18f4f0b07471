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

    def __init__(self) -> None:
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1


def test_a_refused_process_is_killed_when_it_has_not_ended_and_then_left_to_the_kernel() -> None:
    store, hanging, other = Store(), Process(), Process()
    found = refusals.Refusals({4: refusals.RankProcess(71, hanging), 5: refusals.RankProcess(72, other)})
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
    store, ranks = Store(), {4: refusals.RankProcess(71, Process())}
    found = refusals.Refusals(ranks)
    refusals.note(store, 4, 71)
    found.look(store, 0.0)
    ranks[4] = refusals.RankProcess(73, Process())
    found.look(store, 1000.0)
    assert ranks[4].process.kills == 0


def test_no_two_processes_have_the_same_number() -> None:
    numbers = [refusals.new_number() for _ in range(100)]
    assert len(set(numbers)) == 100
    assert all(0 < number <= refusals.MOST_NUMBER for number in numbers)
