"""Annotations of spares: only those that the operator has recorded, with the values it has set, are changed."""

from __future__ import annotations

import pytest

from falcon_operator.base.spare_annotations import RECORD, changes, recorded, relevant

KEEP = "karpenter.sh/do-not-disrupt"
OTHER = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
OURS = {KEEP: "true", RECORD: f"{KEEP}=true"}
NOTHING: dict[str, str | None] = {}


def patched(annotations: dict[str, str], wanted: dict[str, str]) -> dict[str, str]:
    """Return the annotations after the change, which has to be the last one that is due."""
    merged = {**annotations, **changes(annotations, wanted)}
    after = {key: value for key, value in merged.items() if value is not None}
    assert changes(after, wanted) == NOTHING
    return after


@pytest.mark.parametrize(
    ("before", "wanted", "after"),
    [
        ({"a": "b"}, {}, {"a": "b"}),
        ({"a": "b"}, {KEEP: "true"}, {"a": "b", **OURS}),
        ({}, {OTHER: "true", KEEP: "true"}, {OTHER: "true", KEEP: "true", RECORD: f"{OTHER}=true,{KEEP}=true"}),
        ({**OURS, "a": "b"}, {}, {"a": "b"}),
        (OURS, {KEEP: "1"}, {KEEP: "1", RECORD: f"{KEEP}=1"}),
        (OURS, {OTHER: "true"}, {OTHER: "true", RECORD: f"{OTHER}=true"}),
        ({RECORD: f"{KEEP}=true"}, {KEEP: "true"}, OURS),
        ({RECORD: f"{KEEP}=true"}, {}, {}),
    ],
    ids=[
        "nothing set",
        "a new spare",
        "two keys",
        "no spare any more",
        "another value",
        "another key",
        "somebody has removed it",
        "somebody has removed it from what is no spare any more",
    ],
)
def test_what_the_operator_has_set_follows_the_setting(
    before: dict[str, str], wanted: dict[str, str], after: dict[str, str]
) -> None:
    assert patched(before, wanted) == after


@pytest.mark.parametrize("value", ["true", "false"], ids=["with the same value", "with another value"])
def test_an_administrators_annotation_is_neither_changed_nor_recorded_nor_removed(value: str) -> None:
    theirs = {KEEP: value}
    assert patched(theirs, {KEEP: "true"}) == theirs
    assert patched(theirs, {}) == theirs


def test_what_an_administrator_has_set_over_it_stays() -> None:
    theirs = {KEEP: "false", RECORD: f"{KEEP}=true"}
    assert patched(theirs, {KEEP: "true"}) == {KEEP: "false"}
    assert patched(theirs, {}) == {KEEP: "false"}


def test_only_what_a_change_depends_on_is_kept_of_a_node() -> None:
    assert relevant({"a": "b"}, {KEEP: "true"}) == {}
    assert relevant({"a": "b", OTHER: "x"}, {OTHER: "true"}) == {OTHER: "x"}
    assert relevant({"a": "b", **OURS}, {}) == OURS


@pytest.mark.parametrize("record", ["", "x", ",", "=,x"])
def test_a_record_that_somebody_has_spoiled_names_nothing_of_the_node(record: str) -> None:
    assert not {KEEP, "a"} & recorded({RECORD: record}).keys()
    assert patched({"a": "b", RECORD: record}, {}) == {"a": "b"}
