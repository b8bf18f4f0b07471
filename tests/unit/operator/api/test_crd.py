"""The generator of TrainingRun's definition: what each type becomes, and what it refuses to guess."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dev.crd.definition import definition
from dev.crd.schema import MAX_ITEMS, MAX_LENGTH, PRESERVED, UnsupportedTypeError, schema_of
from dev.crd.trainingrun import TRAINING_RUN
from falcon_operator.api.markers import opaque
from falcon_operator.api.trainingrun import TrainingRunSpec


class Colour(enum.StrEnum):
    RED = "Red"


class Number(enum.IntEnum):
    ONE = 1


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A part
    of the ``whole``."""

    pod_name: Annotated[str, msgspec.Meta(max_length=253)]


class Whole(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    name: str
    share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    count: Annotated[int, msgspec.Meta(ge=0, description="How many.")] = 0
    done: bool = False
    phase: Literal["Stop", "Run"] = "Run"
    side: Literal[1, 2] = 1
    colour: Colour = Colour.RED
    number: Number = Number.ONE
    first_part: Part | None = None
    parts: list[Part] = []
    few: Annotated[list[int], msgspec.Meta(max_length=8)] = []
    by_name: dict[str, float] = {}
    memory: Annotated[Part, opaque()] = Part(pod_name="")
    past: Annotated[list[Part], opaque()] = []


def word(length: int = MAX_LENGTH) -> dict[str, Any]:
    return {"type": "string", "maxLength": length}


WHOLE_NUMBER = {"type": "integer", "format": "int64"}
TEXT = {"description": "A part of the `whole`."}
PART = {**TEXT, "type": "object", "properties": {"podName": word(253)}}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("name", word()),
        ("share", {"type": "number", "minimum": 0, "maximum": 1}),
        ("count", {"description": "How many.", **WHOLE_NUMBER, "minimum": 0}),
        ("done", {"type": "boolean"}),
        ("phase", word()),
        ("side", WHOLE_NUMBER),
        ("colour", word()),
        ("number", WHOLE_NUMBER),
        ("firstPart", {**PART, "nullable": True}),
        ("parts", {"type": "array", "maxItems": MAX_ITEMS, "x-kubernetes-list-type": "atomic", "items": PART}),
        ("few", {"type": "array", "maxItems": 8, "x-kubernetes-list-type": "atomic", "items": WHOLE_NUMBER}),
        ("memory", {**TEXT, "type": "object", **PRESERVED, "x-kubernetes-map-type": "atomic"}),
        (
            "past",
            {
                "type": "array",
                "maxItems": MAX_ITEMS,
                "x-kubernetes-list-type": "atomic",
                "items": {"type": "object", **PRESERVED},
            },
        ),
        ("byName", {"type": "object", "maxProperties": MAX_ITEMS, "additionalProperties": {"type": "number"}}),
    ],
)
def test_each_type_has_its_schema(field: str, expected: dict[str, Any]) -> None:
    assert schema_of(Whole)["properties"][field] == expected


def test_nothing_that_a_newer_version_stores_is_refused() -> None:
    """Check that the schema has no enumeration of words and no required field."""
    assert set(keywords(schema_of(TrainingRunSpec))).isdisjoint({"enum", "required"})


@pytest.mark.parametrize("kind", [str | int, tuple[int, str], int | Part | None, Literal["a", 1], bytes])
def test_a_type_without_counterpart_is_refused_by_its_path(kind: Any) -> None:
    odd = msgspec.defstruct("Odd", [("inner", kind)])
    with pytest.raises(UnsupportedTypeError, match=r"^Odd\.inner: "):
        schema_of(odd)


def test_a_run_has_no_status_and_is_found_by_its_short_name() -> None:
    spec = definition(TRAINING_RUN)["spec"]
    (version,) = spec["versions"]
    assert (spec["scope"], spec["names"]["kind"], spec["names"]["shortNames"]) == ("Namespaced", "TrainingRun", ["ftr"])
    assert "subresources" not in version
    assert set(version["schema"]["openAPIV3Schema"]["properties"]) == {"apiVersion", "kind", "metadata", "spec"}


def test_the_names_in_a_run_follow_the_api() -> None:
    """Check all names, also in structs that core shares with other uses."""
    assert [name for name in names(schema_of(TrainingRunSpec)) if not re.fullmatch("[a-z][a-zA-Z0-9]*", name)] == []


def test_the_comment_of_a_field_is_what_explain_shows() -> None:
    fields = schema_of(TrainingRunSpec)["properties"]
    assert fields["phase"]["description"].startswith("what the operator wants of this life: Run, Stop or Finish")
    assert fields["exclusions"]["items"]["properties"]["fenced"]["description"].startswith("the node is fenced")
    assert [name for name in fields if "description" not in fields[name]] == []


def test_the_columns_show_fields_of_their_types() -> None:
    (version,) = definition(TRAINING_RUN)["spec"]["versions"]
    shown = {column["jsonPath"]: column["type"] for column in version["additionalPrinterColumns"]}
    assert shown.pop(".metadata.creationTimestamp") == "date"
    for path, kind in shown.items():
        node = version["schema"]["openAPIV3Schema"]
        for step in path.removeprefix(".").split("."):
            node = node["properties"][step]
        assert node["type"] == kind, path


def names(node: dict[str, Any]) -> Iterator[str]:
    """Yield the names of all properties within a schema."""
    yield from node.get("properties", {})
    for child in (*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")):
        yield from names(child) if child else ()


def keywords(node: dict[str, Any]) -> set[str]:
    """Return the keywords of a schema and of all schemas within it; names of properties are no keywords."""
    found = set(node)
    inner = [*node.get("properties", {}).values(), node.get("items"), node.get("additionalProperties")]
    for child in inner:
        found |= keywords(child) if child else set()
    return found


def test_a_struct_that_is_written_as_an_array_is_refused() -> None:
    """Such a value was refused by the API server, and the job that it belonged to stood still."""

    pair = msgspec.defstruct("Pair", [("first", int)], array_like=True)
    with pytest.raises(UnsupportedTypeError, match=r"^Holder\.inner: Pair is written as an array"):
        schema_of(msgspec.defstruct("Holder", [("inner", pair)]))
