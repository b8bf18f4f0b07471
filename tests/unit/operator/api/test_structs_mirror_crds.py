"""The CRDs and the typed API say the same: fields, types, enumerations and defaults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect

from falcon_operator.api.trainingjob import TrainingJobSpec, TrainingJobStatus
from falcon_operator.api.warmpool import WarmPoolSpec, WarmPoolStatus

CRDS = Path(__file__).resolve().parents[4] / "crds"
Schema = dict[str, Any]
# fields that the schema knows so as to refuse them by name: no code reads them
REFUSED = {"spec": {"minReplicas", "weight"}}


def schema(plural: str, part: str) -> Schema:
    crd = yaml.safe_load((CRDS / f"{plural}.falcon.dev.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    found: Schema = version["schema"]["openAPIV3Schema"]["properties"][part]
    return found


@pytest.mark.parametrize(
    ("struct", "plural", "part"),
    [
        (TrainingJobSpec, "trainingjobs", "spec"),
        (TrainingJobStatus, "trainingjobs", "status"),
        (WarmPoolSpec, "warmpools", "spec"),
        (WarmPoolStatus, "warmpools", "status"),
    ],
)
def test_schema_and_struct_agree(struct: type[msgspec.Struct], plural: str, part: str) -> None:
    differences = list(compare(inspect.type_info(struct), schema(plural, part), part))
    assert differences == []


def test_a_difference_would_be_found() -> None:
    """Check the comparison itself: it notices a wrong type, a missing field and another default."""
    wrong = schema("trainingjobs", "spec")
    wrong["properties"]["detection"]["properties"]["hangFactor"]["default"] = 4
    wrong["properties"]["replicas"]["type"] = "string"
    del wrong["properties"]["suspend"]
    assert {at for at, *_ in compare(inspect.type_info(TrainingJobSpec), wrong, "spec")} == {
        "spec",
        "spec.replicas",
        "spec.detection.hangFactor",
    }


def compare(kind: inspect.Type, node: Schema, at: str) -> Any:
    """Yield (path, what the struct says, what the schema says) wherever they differ."""
    if isinstance(kind, inspect.UnionType):  # optional: absent is None
        kind = next(option for option in kind.types if not isinstance(option, inspect.NoneType))
    said = {
        inspect.IntType: "integer",
        inspect.StrType: "string",
        inspect.LiteralType: "string",
        inspect.BoolType: "boolean",
        inspect.EnumType: "string",
        inspect.ListType: "array",
        inspect.VarTupleType: "array",
        inspect.DictType: "object",
        inspect.StructType: "object",
    }[type(kind)]
    if said != node["type"]:
        yield at, said, node["type"]
    elif isinstance(kind, inspect.LiteralType | inspect.EnumType):
        if words_of(kind) != set(node["enum"]):
            yield at, words_of(kind), node["enum"]
    elif isinstance(kind, inspect.ListType | inspect.VarTupleType):
        yield from compare(kind.item_type, node["items"], f"{at}[]")
    elif isinstance(kind, inspect.StructType):
        yield from compare_fields(kind, node, at)


def words_of(kind: inspect.LiteralType | inspect.EnumType) -> set[Any]:
    return set(kind.values) if isinstance(kind, inspect.LiteralType) else {member.value for member in kind.cls}


def compare_fields(kind: inspect.StructType, node: Schema, at: str) -> Any:
    properties = node["properties"]
    names = {field.encode_name for field in kind.fields} | (REFUSED.get(at, set()) & set(properties))
    if names != set(properties):
        yield at, names - set(properties), set(properties) - names
    for field in kind.fields:
        if field.encode_name not in properties:
            continue
        inner, path = properties[field.encode_name], f"{at}.{field.encode_name}"
        yield from compare(field.type, inner, path)
        default = default_of(field)
        # a schema's `default: {}` is filled by the defaults of the fields within, and status has none
        if inner.get("default") not in (None, {}) and default != inner["default"]:
            yield path, default, inner["default"]


def default_of(field: inspect.Field) -> Any:
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    return made if made is msgspec.NODEFAULT else msgspec.to_builtins(made)


@pytest.mark.parametrize(("at", "name"), [(at, name) for at, names in REFUSED.items() for name in sorted(names)])
def test_a_field_that_no_code_reads_is_refused(at: str, name: str) -> None:
    node = schema("trainingjobs", "spec")
    for step in at.split(".")[1:]:
        node = node["properties"][step]
    assert f"!has(self.{name})" in [rule["rule"] for rule in node["x-kubernetes-validations"]]
    assert "default" not in node["properties"][name]
