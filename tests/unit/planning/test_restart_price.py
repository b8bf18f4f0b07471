"""What an action that restarts every process costs, by what is declared, measured or neither."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.planning.errors import InvalidInputError
from falcon_core.planning.restart_price import UNDECLARED_AT_MOST_SECONDS, RestartPrice, redo_seconds, restart_price


@pytest.mark.parametrize(
    ("trained", "interval", "redo"),
    [
        (0.0, None, 0.0),
        (1000.0, None, 1000.0),
        (1e6, None, UNDECLARED_AT_MOST_SECONDS),
        (1000.0, 1800.0, 1000.0),
        (1799.0, 1800.0, 1799.0),
        (1800.0, 1800.0, 900.0),
        (1e6, 1800.0, 900.0),
    ],
)
def test_the_work_to_redo(trained: float, interval: float | None, redo: float) -> None:
    assert redo_seconds(trained, interval_seconds=interval) == redo


@pytest.mark.parametrize(("trained", "unsaved", "redo"), [(1e6, 40.0, 40.0), (10.0, 40.0, 10.0), (1e6, 0.0, 0.0)])
def test_a_known_save_is_taken_in_place_of_every_guess(trained: float, unsaved: float, redo: float) -> None:
    for interval in (None, 1800.0):
        assert redo_seconds(trained, interval_seconds=interval, unsaved_seconds=unsaved) == redo
    with pytest.raises(InvalidInputError):
        redo_seconds(trained, interval_seconds=None, unsaved_seconds=-1.0)


def price(**fields: float | None) -> RestartPrice:
    return restart_price(
        configured_seconds=fields.get("configured"),
        measured_seconds=fields.get("measured"),
        default_seconds=13.0,
        trained_seconds=fields.get("trained") or 0.0,
        interval_seconds=fields.get("interval"),
        unsaved_seconds=fields.get("unsaved"),
    )


def test_without_a_configured_price_the_parts_are_added() -> None:
    assert price(trained=100.0) == RestartPrice(seconds=113.0, redo_seconds=100.0)
    assert price(trained=100.0, measured=40.0) == RestartPrice(seconds=140.0, redo_seconds=100.0)
    assert price(trained=1e4, measured=40.0, interval=600.0) == RestartPrice(seconds=340.0, redo_seconds=300.0)


def test_a_configured_price_is_raised_by_what_is_known_and_never_lowered() -> None:
    assert price(configured=900.0, trained=1e4, measured=12.0).seconds == 900.0
    assert price(configured=900.0, trained=1e4, measured=950.0).seconds == 950.0
    assert price(configured=5.0, trained=1e4) == RestartPrice(seconds=5.0), "it is the whole price: nothing is guessed"
    assert price(configured=5.0, trained=1e4, interval=600.0) == RestartPrice(seconds=305.0, redo_seconds=300.0)
    assert price(configured=900.0, trained=1e4, interval=1800.0) == RestartPrice(seconds=913.0, redo_seconds=900.0)
    assert price(configured=900.0, trained=1e4, interval=600.0, measured=12.0) == RestartPrice(seconds=900.0)
    assert price(configured=5.0, trained=1e4, unsaved=70.0) == RestartPrice(seconds=75.0, redo_seconds=70.0)
    assert price(configured=900.0, trained=1e4, interval=1800.0, unsaved=0.0) == RestartPrice(seconds=900.0)


SECONDS = st.none() | st.floats(1.0, 1e5)


@given(
    known=st.fixed_dictionaries(dict.fromkeys(("configured", "measured", "trained", "interval", "unsaved"), SECONDS)),
    which=st.sampled_from(["configured", "measured", "interval", "unsaved"]),
    more=st.floats(0.0, 1e5),
)
def test_a_price_never_falls_as_what_it_depends_on_rises_and_is_bounded(
    known: dict[str, float | None], which: str, more: float
) -> None:
    """Check all but the time trained: the price falls where a first declared interval is over."""
    now, trained = price(**known), known["trained"] or 0.0
    if (before := known[which]) is not None:
        assert price(**{**known, which: before + more}).seconds >= now.seconds
    standstill = max(13.0, known["measured"] or 0.0, known["configured"] or 0.0)
    assert (known["configured"] or 0.0) <= now.seconds <= standstill + trained
    if known["unsaved"] is None and known["interval"] is None:
        assert now.seconds <= standstill + UNDECLARED_AT_MOST_SECONDS


@pytest.mark.parametrize(("trained", "interval"), [(-1.0, None), (1.0, 0.0), (float("nan"), None), (1.0, float("nan"))])
def test_what_makes_no_sense_is_refused(trained: float, interval: float | None) -> None:
    with pytest.raises(InvalidInputError):
        redo_seconds(trained, interval_seconds=interval)
