"""List the fields that the operator stores, and find those that a cluster's definition would drop.

The API server drops a field that the definition does not know, and reports no error.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

Schema = dict[str, Any]
Path = tuple[str, ...]  # names of fields, and the steps below
ITEM = "[]"  # into the entries of a list
VALUE = "{}"  # into the values of a map
ALL = "*"  # into a value that has no schema


def fields_hash(struct: type[msgspec.Struct]) -> str:
    """Return the SHA-256 of the paths of all fields of a struct."""
    return hashlib.sha256("\n".join(sorted(map(_text, stored_fields(struct)))).encode()).hexdigest()


def dropped_fields(struct: type[msgspec.Struct], schema: Schema) -> list[str]:
    """Return the fields of a struct that an object of this schema does not keep, such as "members[].uid"."""
    return [_text(path) for path in stored_fields(struct) if not _keeps(schema, path)]


def stored_fields(struct: type[msgspec.Struct]) -> list[Path]:
    """Return the paths of all fields of a struct."""
    return list(_paths(inspect.type_info(struct), ()))


def _paths(kind: inspect.Type, at: Path) -> Iterator[Path]:
    match kind:
        case inspect.Metadata(extra=extra) if extra and extra.get("opaque"):
            yield (*at, ALL)
        case inspect.Metadata(type=inner):
            yield from _paths(inner, at)
        case inspect.UnionType(types=options):
            for option in options:
                yield from _paths(option, at)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            yield from _paths(item, (*at, ITEM))
        case inspect.DictType(value_type=value):
            yield from _paths(value, (*at, VALUE))
        case inspect.StructType(fields=fields):
            for field in fields:
                yield (*at, field.encode_name)
                yield from _paths(field.type, (*at, field.encode_name))


def _keeps(schema: Schema | None, path: Path) -> bool:
    """Check whether a schema knows a path, or keeps what it does not know on the way."""
    for step in path:
        # A field that stands in an unknown one is dropped with it.
        if schema is None:
            return False
        if step == ITEM:
            schema = schema.get("items")
        elif step == VALUE:
            schema = schema.get("additionalProperties")
        # From here on the definition keeps everything, whatever the rest of the path is.
        elif _is_open(schema):
            return True
        else:
            schema = _opened(schema) if step == ALL else schema.get("properties", {}).get(step)
    return schema is not None


def _is_open(schema: Schema) -> bool:
    return bool(schema.get("x-kubernetes-preserve-unknown-fields"))


def _opened(schema: Schema) -> Schema | None:
    """Return the schema of the entries of an opaque list, if it keeps what it does not know."""
    items = schema.get("items")
    return items if items is not None and _is_open(items) else None


def _text(path: Path) -> str:
    return ".".join(path).replace(f".{ITEM}", ITEM).replace(f".{VALUE}", VALUE)
