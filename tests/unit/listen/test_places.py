"""Who gets a place at a port, and whose place is taken."""

from __future__ import annotations

import pytest

from falcon_listen.places import Limits, Places

LIMITS = Limits(places=4, places_of_a_source=3, opened_per_second=2, opened_at_once=10)


def admitted(places: Places[str], *names: str, now: float = 0.0) -> list[str | None]:
    """Enter connections whose first letter is their source; return whose places they take."""
    entries = [places.enter(name, name[0], now) for name in names]
    assert all(entry.admitted for entry in entries)
    return [entry.replaced for entry in entries]


def test_a_source_that_has_all_its_places_loses_its_oldest() -> None:
    places: Places[str] = Places(LIMITS)
    assert admitted(places, "a1", "a2", "a3", "a4", "a5") == [None, None, None, "a1", "a2"]
    assert places.connections() == ["a3", "a4", "a5"]


def test_a_source_with_one_connection_keeps_it_while_another_has_more() -> None:
    places: Places[str] = Places(LIMITS)
    assert admitted(places, "h1", "a1", "a2", "a3", "b1", "c1") == [None, None, None, None, "a1", "a2"]
    assert len(places) == 4
    assert "h1" in places.connections()


def test_a_connection_that_is_over_leaves_its_place_once() -> None:
    places: Places[str] = Places(LIMITS)
    admitted(places, "a1", "a2")
    places.leave("a1")
    places.leave("a1")
    assert places.connections() == ["a2"]


def test_a_source_that_opens_too_fast_is_refused_alone_and_for_a_while() -> None:
    places: Places[str] = Places(LIMITS)
    admitted(places, *(f"a{number}" for number in range(10)))
    assert not places.enter("a10", "a", 0.4).admitted
    assert places.enter("h1", "h", 0.4).admitted
    assert places.enter("a11", "a", 0.5).admitted
    assert not places.enter("a12", "a", 0.5).admitted


def test_sources_that_were_quiet_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("falcon_listen.places.MOST_SOURCES", 10)
    places: Places[int] = Places(LIMITS)
    for number in range(30):
        places.enter(number, str(number), now=float(number))
    assert len(places._allowances) <= 10
