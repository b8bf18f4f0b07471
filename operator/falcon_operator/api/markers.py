"""Mark what a definition says of a field beyond its type: bounds, CEL rules, the kind of a list.

``python -m dev.crd`` writes the marks into the definitions, and the API server enforces them. msgspec does not: an
operator must be able to read what a newer definition has accepted. CEL keeps to what Kubernetes 1.29 compiles: no
optionals, no format(), no sets. ``manifests/validation.py`` checks what CEL cannot
see.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

Keywords = dict[str, Any]
T = TypeVar("T")


class ObjectMarks(msgspec.Struct, frozen=True, kw_only=True):
    """The marks of a struct."""

    keywords: Keywords = {}
    passed: Sequence[str] = ()  # further fields of any type
    refused: type[msgspec.Struct] | None = None  # further fields, which a rule refuses


_MARKS: dict[type, ObjectMarks] = {}


def cel(rule: str, message: str, field: str = "") -> Keywords:
    """Return a rule in CEL, the message for a value that breaks it, and the field that the message is about."""
    return {"rule": rule, **({"fieldPath": field} if field else {}), "message": message}


def schema(
    *rules: Keywords,
    list_type: Literal["atomic", "map", "set"] | None = None,
    keys: Sequence[str] = (),
    shape: type[msgspec.Struct] | None = None,
    **keywords: Any,
) -> msgspec.Meta:
    """Return the marks of a field, for ``Annotated``.

    Args:
        rules: what a value must satisfy, in the order in which the API server reports them.
        list_type: how a server-side apply merges the list: as a whole, by the entries' keys, or by their values.
        keys: the fields that identify an entry of a "map".
        shape: a struct that describes the value, where the operator keeps the value as it was written.
        keywords: further keywords of the schema, in its own spelling. None takes a keyword away.
    """
    found = {
        "x-kubernetes-validations": list(rules) or None,
        "x-kubernetes-list-type": list_type,
        "x-kubernetes-list-map-keys": list(keys) or None,
    }
    given = {name: value for name, value in found.items() if value is not None}
    return msgspec.Meta(extra_json_schema=given | keywords, extra={"shape": shape} if shape is not None else None)


def opaque() -> msgspec.Meta:
    """Mark a field that the API server stores as it is written, and of which the definition has no schema."""
    return msgspec.Meta(extra={"opaque": True})


def object_schema(
    *rules: Keywords,
    keeps_unknown: bool = False,
    passed: Sequence[str] = (),
    refused: type[msgspec.Struct] | None = None,
) -> Callable[[type[T]], type[T]]:
    """Return a decorator that marks a struct.

    Args:
        rules: what an object must satisfy, in the order in which the API server reports them.
        keeps_unknown: whether the API server keeps fields that the struct does not have.
        passed: names of further fields, of any type.
        refused: further fields that are known only so that a rule can refuse them by name.
    """
    keywords: Keywords = {"x-kubernetes-validations": list(rules)} if rules else {}
    if keeps_unknown:
        keywords["x-kubernetes-preserve-unknown-fields"] = True

    def mark(struct: type[T]) -> type[T]:
        _MARKS[struct] = ObjectMarks(keywords=keywords, passed=passed, refused=refused)
        return struct

    return mark


def marks_of(struct: type) -> ObjectMarks:
    """Return the marks of a struct; none where it was not marked."""
    return _MARKS.get(struct, ObjectMarks())
