"""A watch's position: where it moves, and which histories it refuses to continue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from falcon_etcd import KeyValue, WatchEvent
from falcon_etcd._cursor import Cursor


def kv(key: str, mod_revision: int, value: bytes = b"") -> KeyValue:
    return KeyValue(key, value, create_revision=1, mod_revision=mod_revision, version=1, lease=0)


def put(key: str, revision: int) -> WatchEvent:
    return WatchEvent("put", kv(key, revision))


def delete(key: str, revision: int) -> WatchEvent:
    return WatchEvent("delete", kv(key, revision))


def test_a_listing_is_continued_behind_its_revision() -> None:
    cursor = Cursor.after_listing([kv("/a", 7), kv("/b", 9), kv("/c", 3)], revision=12, cluster_id=5)
    assert (cursor.seen_revision, cursor.next_revision, cursor.witness) == (12, 13, kv("/b", 9))
    assert Cursor.after_listing([], 12, 5).witness is None


def test_events_move_the_cursor_behind_the_last_event() -> None:
    cursor = Cursor(10).after([put("/a", 12), put("/b", 12), delete("/c", 15)])
    assert (cursor.next_revision, cursor.witness) == (16, kv("/b", 12))


def test_a_witness_is_asked_for_at_the_last_revision_at_which_it_was_there() -> None:
    cursor = Cursor(10).after([put("/a", 12)])
    assert cursor.witness_revision == 12
    assert cursor.after([delete("/b", 14)]).witness_revision == 14
    assert cursor.after_progress(90).witness_revision == 90
    gone = cursor.after_progress(90).after([delete("/a", 95), delete("/b", 97)])
    assert (gone.witness, gone.witness_revision, gone.seen_revision) == (kv("/a", 12), 94, 97)
    assert gone.after([put("/c", 98)]).witness_revision == 98


def test_progress_moves_it_and_keeps_the_witness() -> None:
    cursor = Cursor(10).after([put("/a", 12)]).after_progress(90)
    assert (cursor.next_revision, cursor.witness) == (91, kv("/a", 12))
    assert cursor.after_progress(50).next_revision == 91


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 1_000)), max_size=30))
def test_it_never_moves_back(steps: list[tuple[bool, int]]) -> None:
    cursor = Cursor(1)
    for is_event, revision in steps:
        moved = cursor.after([put("/a", revision)]) if is_event else cursor.after_progress(revision)
        assert moved.next_revision == max(cursor.next_revision, revision + 1)
        cursor = moved


def test_another_cluster_never_fits() -> None:
    cursor = Cursor(10, cluster_id=5, witness=kv("/a", 9))
    for fresh in (True, False):
        assert cursor.misfit(6, 100, fresh=fresh) == "cluster 6 instead of 5"
        assert cursor.misfit(5, 100, fresh=fresh) is None
    assert Cursor(10).misfit(6, 100, fresh=True) is None, "not known yet"


def test_without_a_witness_only_a_fresh_position_is_trusted_and_only_if_the_revision_did_not_fall() -> None:
    cursor = Cursor(10, cluster_id=5)
    assert cursor.misfit(5, 9, fresh=True) is None
    assert cursor.misfit(5, 8, fresh=True) == "revision 8 is below 9"
    assert cursor.misfit(5, 9, fresh=False) is not None


def test_a_member_that_lags_is_left_to_the_witness() -> None:
    assert Cursor(10, cluster_id=5, witness=kv("/a", 9)).misfit(5, 4, fresh=False) is None


def test_a_read_contradicts_when_the_witness_is_missing_or_different_or_the_revision_fell() -> None:
    cursor = Cursor(10, witness=kv("/a", 7, b"v"))
    assert cursor.contradiction(9, kv("/a", 7, b"v")) is None
    assert cursor.contradiction(8, kv("/a", 7, b"v")) == "revision 8 is below 9"
    for found in (None, kv("/a", 7, b"w"), kv("/a", 6, b"v")):
        assert cursor.contradiction(9, found) == "/a at revision 9 is not what it was"


def test_it_learns_its_cluster() -> None:
    assert Cursor(10).of_cluster(5).misfit(6, 100, fresh=True) == "cluster 6 instead of 5"
