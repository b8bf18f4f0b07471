"""Check the generator of TrainingJob's and WarmPool's definitions: what each type and each mark becomes."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import msgspec
import pytest

from dev.crd.__main__ import KINDS, main
from dev.crd.definition import Kind, definition, render
from dev.crd.objects import object_of, resource_schema
from dev.crd.schema import UnsupportedTypeError
from falcon_operator.api.markers import cel, object_schema, schema
from falcon_operator.api.trainingjob import NotYet, TrainingJobSpec

RULE = {"rule": "self != 'x'", "fieldPath": ".word", "message": "is x: write y"}


class Colour(enum.StrEnum):
    RED = "Red"
    BLUE = "Blue"


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    pod_name: str
    rank: int = 0


class Later(msgspec.Struct, frozen=True, kw_only=True):
    weight: str = ""
    """Not yet."""


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    size: int = 1


@object_schema(cel(RULE["rule"], RULE["message"], ".word"), keeps_unknown=True, passed=("other",), refused=Later)
class Spec(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    word: Literal["b", "a"]
    """A word
    that is described."""

    count: Annotated[int, schema(minimum=1, maximum=9)] = 5
    """A count."""

    large: Annotated[int | None, schema(format="int64")] = None
    without_default: Annotated[int, schema(default=None)] = 7
    done: bool = False
    name: Annotated[str, schema(cel("self != ''", "is empty"), maxLength=8)] = ""
    colour: Colour = Colour.RED
    part: Part | None = None
    inner: Shape = Shape()
    parts: Annotated[list[Part], schema(list_type="map", keys=["podName"], maxItems=4)] = []
    codes: tuple[Annotated[int, schema(maximum=255)], ...] = (1, 2)
    quantities: dict[str, int | str] = {}
    template: Annotated[dict[str, Any], schema(shape=Shape)] = {}


class Status(msgspec.Struct, frozen=True, kw_only=True):
    count: int = 3


class Thing(msgspec.Struct, frozen=True, kw_only=True):
    """A thing."""

    metadata: dict[str, Any] = {}
    spec: Spec
    """What is wanted."""

    status: Status = Status()
    """What is known."""


PART = {
    "type": "object",
    "required": ["podName"],
    "properties": {"podName": {"type": "string"}, "rank": {"type": "integer", "format": "int32", "default": 0}},
}
SIZE = {"type": "integer", "format": "int32"}


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ("word", {"description": "A word that is described.", "type": "string", "enum": ["b", "a"]}),
        (
            "count",
            {
                "description": "A count.",
                "type": "integer",
                "format": "int32",
                "minimum": 1,
                "maximum": 9,
                "default": 5,
            },
        ),
        ("large", {"type": "integer", "format": "int64"}),
        ("withoutDefault", {"type": "integer", "format": "int32"}),
        ("done", {"type": "boolean", "default": False}),
        (
            "name",
            {
                "type": "string",
                "maxLength": 8,
                "x-kubernetes-validations": [{"rule": "self != ''", "message": "is empty"}],
            },
        ),
        ("colour", {"type": "string", "enum": ["Red", "Blue"], "default": "Red"}),
        ("part", PART),
        ("inner", {"type": "object", "default": {}, "properties": {"size": {**SIZE, "default": 1}}}),
        (
            "parts",
            {
                "type": "array",
                "maxItems": 4,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["podName"],
                "items": PART,
            },
        ),
        ("codes", {"type": "array", "items": {**SIZE, "maximum": 255}, "default": [1, 2]}),
        (
            "quantities",
            {
                "type": "object",
                "additionalProperties": {
                    "anyOf": [{"type": "integer"}, {"type": "string"}],
                    "x-kubernetes-int-or-string": True,
                },
            },
        ),
        ("template", {"type": "object", "properties": {"size": SIZE}}),
        ("other", {"x-kubernetes-preserve-unknown-fields": True}),
        ("weight", {"description": "Not yet.", "type": "string"}),
    ],
)
def test_each_field_has_its_schema(field: str, expected: dict[str, Any]) -> None:
    assert object_of(Spec, defaults=True)["properties"][field] == expected


def test_the_marks_of_a_struct_stand_at_its_object() -> None:
    found = object_of(Spec, defaults=True)
    assert found["required"] == ["word"]
    assert found["x-kubernetes-validations"] == [RULE]
    assert found["x-kubernetes-preserve-unknown-fields"] is True


def test_a_status_has_no_defaults() -> None:
    properties = resource_schema(Thing)["properties"]
    assert properties["status"] == {"description": "What is known.", "type": "object", "properties": {"count": SIZE}}
    assert properties["spec"]["description"] == "What is wanted."


def test_msgspec_does_not_enforce_the_marks() -> None:
    """An older operator must be able to read what a newer definition has accepted."""
    assert msgspec.convert({"word": "a", "count": 10}, Spec).count == 10


@pytest.mark.parametrize("kind", [int | Part, tuple[int, str], bytes, int | str | None | Part, enum.IntEnum])
def test_a_type_without_counterpart_is_refused_by_its_path(kind: Any) -> None:
    odd = msgspec.defstruct("Odd", [("inner", kind)])
    with pytest.raises(UnsupportedTypeError, match=r"^Odd\.inner: "):
        object_of(odd, defaults=True)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_the_committed_definition_is_the_generated_definition(kind: Kind) -> None:
    assert kind.path.read_text(encoding="utf-8") == render(kind), "run: python -m dev.crd"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_each_field_is_described(kind: Kind) -> None:
    (version,) = definition(kind)["spec"]["versions"]
    for part in ("spec", "status"):
        fields = version["schema"]["openAPIV3Schema"]["properties"].get(part, {}).get("properties", {})
        assert [name for name, node in fields.items() if "description" not in node] == []


def test_an_outdated_definition_fails_the_check(tmp_path: Any, monkeypatch: Any, capsys: Any) -> None:
    monkeypatch.setattr("dev.crd.definition.FOLDER", tmp_path)
    monkeypatch.setattr("sys.argv", ["dev.crd"])
    assert main() == 0
    monkeypatch.setattr("sys.argv", ["dev.crd", "--check"])
    assert main() == 0
    path = tmp_path / "warmpools.falcon.dev.yaml"
    path.write_text(path.read_text().replace("maximum: 4096", "maximum: 4097", 1))
    assert main() == 1
    assert capsys.readouterr().out.startswith("crds/warmpools.falcon.dev.yaml differs from the types")


@pytest.mark.parametrize("field", [field.encode_name for field in msgspec.structs.fields(NotYet)])
def test_a_field_that_no_code_reads_is_refused(field: str) -> None:
    node = object_of(TrainingJobSpec, defaults=True)
    assert f"!has(self.{field})" in [rule["rule"] for rule in node["x-kubernetes-validations"]]
    assert "default" not in node["properties"][field]
