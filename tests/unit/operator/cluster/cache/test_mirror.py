"""The mirror under racing sources: lists, events and the answers to the operator's own writes."""

from __future__ import annotations

from falcon_operator.cluster.cache.mirror import Item, Mirror

A, B, C = ("ns", "a"), ("ns", "b"), ("ns", "c")
Change = tuple[str | None, str | None]


class Bench:
    """A mirror of words, and what it reported."""

    def __init__(self, *listed: Item[str], version: int = 10) -> None:
        self.changes: list[Change] = []
        self.mirror: Mirror[str] = Mirror(lambda before, after: self.changes.append((before, after)))
        self.mirror.listed(listed, version)
        self.changes.clear()

    @property
    def views(self) -> set[str]:
        return set(self.mirror.views())


def test_before_the_first_list_nothing_is_known() -> None:
    mirror: Mirror[str] = Mirror()
    assert not mirror.synced
    mirror.listed([Item(A, 3, "a")], 10)
    assert mirror.synced
    assert mirror.views() == ["a"]


def test_events_are_taken_over_in_their_order_and_an_older_event_is_not() -> None:
    bench = Bench(Item(A, 3, "a3"))
    bench.mirror.changed(Item(A, 11, "a11"))
    bench.mirror.changed(Item(A, 4, "a4"))
    bench.mirror.changed(Item(B, 12, "b12"))
    bench.mirror.deleted(A, 13)
    bench.mirror.deleted(A, 13)
    assert bench.views == {"b12"}
    assert bench.changes == [("a3", "a11"), (None, "b12"), ("a11", None)]


def test_a_change_that_no_view_shows_is_not_reported() -> None:
    bench = Bench(Item(A, 3, "a"))
    bench.mirror.changed(Item(A, 11, "a"))
    assert bench.changes == []
    bench.mirror.changed(Item(A, 10, "older"))
    assert bench.views == {"a"}, "the version was taken over all the same"


def test_a_list_finds_what_was_deleted_while_no_watch_ran() -> None:
    bench = Bench(Item(A, 3, "a"), Item(B, 4, "b"))
    bench.mirror.listed([Item(B, 4, "b"), Item(C, 15, "c")], 20)
    assert bench.views == {"b", "c"}
    assert set(bench.changes) == {("a", None), (None, "c")}


def test_an_own_write_is_seen_at_once_and_not_lost_to_an_older_list_or_event() -> None:
    bench = Bench()
    bench.mirror.written(Item(A, 15, "made"))
    assert bench.views == {"made"}
    bench.mirror.listed([], 12)  # was on its way when the object was made
    assert bench.views == {"made"}
    bench.mirror.changed(Item(A, 15, "made"))
    assert bench.changes == [(None, "made")]
    bench.mirror.listed([], 16)
    assert bench.views == set()


def test_an_answer_that_comes_after_the_deletion_was_reported_brings_nothing_back() -> None:
    bench = Bench()
    bench.mirror.changed(Item(A, 11, "made"))
    bench.mirror.deleted(A, 12)
    bench.mirror.written(Item(A, 11, "made"))
    bench.mirror.ending(Item(A, 12, "ending"))
    assert bench.views == set()


def test_a_bookmark_also_says_how_far_the_watch_is() -> None:
    bench = Bench()
    bench.mirror.reached(30)
    bench.mirror.written(Item(A, 25, "made and deleted since"))
    assert bench.views == set()


def test_an_own_deletion_shows_at_once_and_an_older_event_does_not_undo_it() -> None:
    bench = Bench(Item(A, 3, "runs"))
    bench.mirror.ending(Item(A, 12, "ending"))
    bench.mirror.changed(Item(A, 11, "runs on"))
    assert bench.views == {"ending"}
    bench.mirror.deleted(A, 12)
    assert bench.views == set()


def test_an_own_deletion_does_not_touch_a_namesake_that_was_made_since() -> None:
    bench = Bench(Item(A, 3, "old"))
    bench.mirror.deleted(A, 12)
    bench.mirror.written(Item(A, 13, "new"))
    bench.mirror.ending(Item(A, 12, "ending"))
    bench.mirror.deleted(A, 12)
    assert bench.views == {"new"}


def test_a_cluster_that_was_restored_from_a_backup_counts_anew() -> None:
    bench = Bench(Item(A, 90, "a90"), Item(B, 95, "b95"), version=100)
    bench.mirror.listed([Item(A, 40, "a40")], 50)
    assert bench.views == {"a40"}
    bench.mirror.written(Item(C, 51, "c"))
    assert bench.views == {"a40", "c"}


def test_what_the_server_does_not_have_is_forgotten() -> None:
    bench = Bench(Item(A, 3, "a"))
    bench.mirror.forget(A)
    bench.mirror.forget(A)
    assert bench.changes == [("a", None)]
