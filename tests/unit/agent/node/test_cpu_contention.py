"""Who is named while a node has no idle core, when that begins, when it is written anew, and when it ends."""

from __future__ import annotations

from falcon_agent.node.cpu_contention import CALM_SECONDS, IDLE, REASON, RENEWED_SECONDS, WINDOW_SECONDS, Busy
from falcon_agent.node.cpu_usage import Usage

CORES = 4.0
NAMES = {"a": "train/gpt2-1", "b": "batch/etl-5"}


class Node:
    """A node whose pods use so many cores."""

    def __init__(self) -> None:
        self.busy = Busy(lambda uid: NAMES.get(uid, ""))
        self._at = 100.0
        self._total = 0
        self._pods: dict[str, int] = {}
        self._feed()

    def _feed(self) -> None:
        self.busy.feed(Usage(self._at, CORES, self._total, dict(self._pods)))

    def runs(self, seconds: float, outside: float = 0.0, **pods: float) -> str:
        """Let time pass, and return what the condition says; empty where it does not hold."""
        left = seconds
        while left > 0:
            step = min(5.0, left)
            left -= step
            self._at += step
            for uid, cores in pods.items():
                self._pods[uid] = self._pods.get(uid, 0) + round(cores * step * 1e9)
            self._total += round((outside + sum(pods.values())) * step * 1e9)
            self._feed()
        condition = self.busy.condition
        assert condition.reason == (REASON if condition.holds else IDLE.reason)
        return condition.message if condition.holds else ""


def test_a_node_with_an_idle_core_names_nobody() -> None:
    assert Node().runs(60, a=0.9, b=2.8) == ""


def test_those_that_use_a_tenth_of_the_cores_are_named_the_greatest_first() -> None:
    node = Node()
    node.runs(10, outside=0.1, a=1.0, b=1.0)
    assert node.runs(5, outside=0.2, a=0.9, b=2.9) == "of 4.00 cores: batch/etl-5 2.90, train/gpt2-1 0.90"


def test_what_runs_outside_pods_and_a_pod_without_a_name_are_named_as_such() -> None:
    node = Node()
    node.runs(5, outside=2.0, c=2.0)
    assert node.runs(5, outside=2.5, c=1.5) == "of 4.00 cores: pod c 2.00, processes outside pods 2.00"


def test_a_pod_that_has_just_begun_is_charged_with_all_its_time_and_no_more_than_all_used() -> None:
    node = Node()
    node.runs(5, a=4.0)
    assert node.runs(5, a=1.0, b=3.0) == "of 4.00 cores: batch/etl-5 3.00, train/gpt2-1 1.00"
    node = Node()
    node.busy.feed(Usage(105.0, CORES, 20 * 10**9, {"b": 10**15}))
    assert node.busy.condition.message == "of 4.00 cores: batch/etl-5 4.00"


def test_many_small_users_are_nobody() -> None:
    node = Node()
    many = {f"pod-{number}": 0.2 for number in range(20)}
    node.runs(5, **many)
    assert node.runs(5, **many) == "many take a part of 4.00 cores"


def test_the_text_changes_with_the_names_and_otherwise_once_a_while() -> None:
    node = Node()
    node.runs(5, a=1.0, b=3.0)
    first = node.runs(5, a=1.1, b=2.9)
    assert node.runs(RENEWED_SECONDS - 10, a=2.0, b=2.0) == first, "figures alone are no news"
    assert node.runs(10, a=1.5, b=2.5) == "of 4.00 cores: batch/etl-5 2.50, train/gpt2-1 1.50"
    assert node.runs(5, a=4.0) == "of 4.00 cores: train/gpt2-1 4.00"


def test_it_ends_when_cores_have_been_idle_for_a_while() -> None:
    node = Node()
    node.runs(10, b=4.0)
    assert node.runs(CALM_SECONDS - 5, b=1.0) != ""
    assert node.runs(5, b=1.0) == ""


def test_readings_that_follow_each_other_too_fast_are_not_compared() -> None:
    busy = Busy(lambda _: "x")
    busy.feed(Usage(0.0, CORES, 0, {}))
    busy.feed(Usage(WINDOW_SECONDS / 2, CORES, 10**11, {"a": 10**11}))
    assert busy.condition == IDLE


def test_counters_that_begin_anew_are_no_use() -> None:
    node = Node()
    node.runs(5, a=4.0)
    node.busy.feed(Usage(110.0, CORES, 0, {"a": 0}))
    node.busy.feed(Usage(115.0, CORES, 10**9, {"a": 10**9}))
    assert node.busy.condition.message == "of 4.00 cores: train/gpt2-1 4.00", "nothing was read since"
