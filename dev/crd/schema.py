"""Translate msgspec structs into the structural OpenAPI schema of a CustomResourceDefinition.

Only the operator reads and writes what it remembers, in this version and in the versions next to it. So the schema
gives types and bounds and refuses nothing else: a word is a string and no enumeration, and no field is required. An
object of a newer version must never be refused, because a refused object would stop the job that it belongs to.
"""

from __future__ import annotations

import ast
import enum
import inspect as python
import io
import textwrap
import tokenize
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import inspect

Schema = dict[str, Any]

PRESERVED: Schema = {"x-kubernetes-preserve-unknown-fields": True}
MAX_LENGTH = 4096  # characters of a string whose type gives no bound
MAX_ITEMS = 4096  # entries of a list or a map likewise: as many as a job may have members


class UnsupportedTypeError(TypeError):
    """The error of a field whose type has no counterpart in a structural schema; the message gives the field's path."""


def schema_of(struct: type[msgspec.Struct]) -> Schema:
    """Return the schema of a struct. The descriptions are its docstrings and its fields' comments.

    Raises:
        UnsupportedTypeError: for a union of two types, a tuple of fixed length, a struct that is written as an
            array, and the like.
    """
    return _schema(inspect.type_info(struct), struct.__name__)


def _schema(kind: inspect.Type, at: str) -> Schema:
    match kind:
        case inspect.Metadata() if (kind.extra or {}).get("opaque"):
            return _opaque(kind.type, at)
        case inspect.Metadata():
            return {**(kind.extra_json_schema or {}), **_schema(kind.type, at)}
        case inspect.UnionType():
            return _nullable(kind, at)
        case inspect.StructType():
            return _object(kind, at)
        case inspect.ListType() | inspect.VarTupleType():
            bound = kind.max_length or MAX_ITEMS
            # atomic: the API server then tracks the owner of the list, and not of each entry
            return {
                "type": "array",
                "maxItems": bound,
                "x-kubernetes-list-type": "atomic",
                "items": _schema(kind.item_type, f"{at}[]"),
            }
        case inspect.DictType():
            bound = kind.max_length or MAX_ITEMS
            return {
                "type": "object",
                "maxProperties": bound,
                "additionalProperties": _schema(kind.value_type, f"{at}{{}}"),
            }
        case _:
            return _scalar(kind, at)


def _opaque(kind: inspect.Type, at: str) -> Schema:
    """Return the schema of a value that is stored whole as it is written: no part of it has a schema or an owner."""
    match kind:
        case inspect.StructType():
            text = {"description": description(kind.cls)}
            return {**text, "type": "object", **PRESERVED, "x-kubernetes-map-type": "atomic"}
        case inspect.ListType(item_type=inspect.StructType()):
            item = {"type": "object", **PRESERVED}
            bound = kind.max_length or MAX_ITEMS
            return {"type": "array", "maxItems": bound, "x-kubernetes-list-type": "atomic", "items": item}
        case _:
            raise UnsupportedTypeError(f"{at}: only a struct and a list of structs can be opaque")


def _scalar(kind: inspect.Type, at: str) -> Schema:
    match kind:
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.IntType():
            return {"type": "integer", "format": "int64", **_limits(kind)}
        case inspect.FloatType():
            return {"type": "number", **_limits(kind)}
        case inspect.StrType():
            return {"type": "string", "maxLength": kind.max_length or MAX_LENGTH}
        case inspect.LiteralType():
            return _word(kind.values, at)
        case inspect.EnumType():
            return _word((member.value for member in kind.cls), at)
        case _:
            raise UnsupportedTypeError(f"{at}: {type(kind).__name__} has no counterpart in a structural schema")


def _word(values: Iterable[object], at: str) -> Schema:
    kinds = {type(value) for value in values}
    if all(issubclass(kind, str) for kind in kinds):
        return {"type": "string", "maxLength": MAX_LENGTH}
    if all(issubclass(kind, int) for kind in kinds):
        return {"type": "integer", "format": "int64"}
    raise UnsupportedTypeError(f"{at}: its values are of several types: {sorted(kind.__name__ for kind in kinds)}")


def _limits(kind: inspect.IntType | inspect.FloatType) -> Schema:
    limits = {"minimum": kind.ge, "maximum": kind.le}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _nullable(kind: inspect.UnionType, at: str) -> Schema:
    options = [option for option in kind.types if not isinstance(option, inspect.NoneType)]
    if len(options) != 1 or len(options) == len(kind.types):
        raise UnsupportedTypeError(f"{at}: a union of several types has no counterpart in a structural schema")
    return {**_schema(options[0], at), "nullable": True}


def _object(kind: inspect.StructType, at: str) -> Schema:
    if kind.array_like:
        raise UnsupportedTypeError(f"{at}: {kind.cls.__name__} is written as an array, whose entries have many types")
    text = description(kind.cls)
    comments = field_comments(kind.cls) | field_docstrings(kind.cls)
    return {
        **({"description": text} if text else {}),
        "type": "object",
        "properties": {
            field.encode_name: _described(_schema(field.type, f"{at}.{field.encode_name}"), comments.get(field.name))
            for field in kind.fields
        },
    }


def _described(schema: Schema, comment: str | None) -> Schema:
    """Put a field's own comment before the description of its type."""
    if comment is None:
        return schema
    own = schema.get("description")
    return {"description": "", **schema} | {"description": f"{comment}. {own}" if own else comment}


def field_comments(struct: type) -> dict[str, str]:
    """Return the comments at the ends of the fields' lines, by field. ``kubectl explain`` shows them."""
    comments: dict[str, str] = {}
    for source, body in _sources(struct):
        by_line = {
            token.start[0]: token.string.lstrip("# ")
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type == tokenize.COMMENT
        }
        for node in body.body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.end_lineno in by_line:
                comments[node.target.id] = by_line[node.end_lineno]
    return comments


def field_docstrings(struct: type) -> dict[str, str]:
    """Return the strings below the fields of a struct and of its bases, each as one paragraph, by field."""
    found: dict[str, str] = {}
    for _, body in _sources(struct):
        for field, below in zip(body.body, body.body[1:], strict=False):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(python.cleandoc(text).split())
    return found


def _sources(struct: type) -> Iterator[tuple[str, ast.ClassDef]]:
    """Yield the source and the syntax tree of the struct's bases and of the struct, which comes last."""
    for base in reversed(struct.__mro__):
        if base.__module__.partition(".")[0] in ("builtins", "msgspec"):
            continue
        try:
            source = textwrap.dedent(python.getsource(base))
        except OSError:  # made by a call of defstruct: it has no text that could describe its fields
            continue
        (body,) = ast.parse(source).body
        assert isinstance(body, ast.ClassDef)
        yield source, body


def description(kind: type) -> str:
    """Return the class's own docstring as a paragraph; empty where it has none."""
    text = kind.__dict__.get("__doc__") or ""
    generated = issubclass(kind, enum.Enum) and text == enum.Enum.__doc__
    return "" if generated else " ".join(python.cleandoc(text).replace("``", "`").split())
