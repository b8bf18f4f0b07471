"""Turn the structs of kinds that users write into the structural schema of a CustomResourceDefinition.

Users need what the operator's own memory must not have (``dev.crd.schema``): words are enumerated, fields without a
default are required, and defaults are written into the object. The description of a field is the string below it, and
``falcon_operator.api.markers`` gives its bounds and rules.
"""

from __future__ import annotations

import enum
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from dev.crd.schema import PRESERVED, Schema, UnsupportedTypeError, description, field_docstrings
from falcon_operator.api.markers import marks_of

_SCALARS: dict[Any, Schema] = {
    bool: {"type": "boolean"},
    int: {"type": "integer", "format": "int32"},
    float: {"type": "number"},
    str: {"type": "string"},
}
_INT_OR_STRING: Schema = {
    "anyOf": [{"type": "integer"}, {"type": "string"}],
    "x-kubernetes-int-or-string": True,
}
_NAME: Schema = {"type": "string", "maxLength": 253}


def resource_schema(kind: type[msgspec.Struct]) -> Schema:
    """Return the schema of a kind, whose struct has the fields ``metadata``, ``spec`` and ``status``."""
    hints = get_type_hints(kind, include_extras=True)
    texts = field_docstrings(kind)
    return {
        "description": description(kind),
        "type": "object",
        "required": ["spec"],
        **marks_of(kind).keywords,
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object", "properties": {"name": dict(_NAME)}},
            "spec": {"description": texts["spec"], **object_of(hints["spec"], defaults=True)},
            "status": {"description": texts["status"], **object_of(hints["status"], defaults=False)},
        },
    }


def object_of(struct: type[msgspec.Struct], *, defaults: bool) -> Schema:
    """Return the schema of a struct, without a description.

    Args:
        struct: the struct.
        defaults: whether the API server is to fill in the fields' defaults.
    """
    marks = marks_of(struct)
    properties = dict.fromkeys(marks.passed, PRESERVED) | _properties(struct, defaults)
    if marks.refused is not None:
        properties |= _properties(marks.refused, defaults=False)
    required = [field.encode_name for field in msgspec.structs.fields(struct) if field.required]
    return {
        "type": "object",
        **marks.keywords,
        **({"required": required} if required else {}),
        **({"properties": properties} if properties else {}),
    }


def _properties(struct: type[msgspec.Struct], defaults: bool) -> dict[str, Schema]:
    hints = get_type_hints(struct, include_extras=True)
    texts = field_docstrings(struct)
    found: dict[str, Schema] = {}
    for field in msgspec.structs.fields(struct):
        schema = _schema(hints[field.name], f"{struct.__name__}.{field.name}", defaults)
        text = texts.get(field.name) or schema.get("description")  # a mark has a text that the type's values give
        inner = {
            **({"description": text} if text else {}),
            **({"default": _default(field)} if defaults else {}),
            **schema,
        }
        found[field.encode_name] = {name: value for name, value in inner.items() if value is not None}
    return found


def _default(field: msgspec.structs.FieldInfo) -> Any:
    """Return the default as it stands in an object; None for a default that is the same as an absent field."""
    made = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    if isinstance(made, msgspec.Struct):
        return {}  # its fields have defaults of their own
    if isinstance(made, tuple):
        made = list(made)
    return msgspec.to_builtins(made) if made is not msgspec.NODEFAULT and made not in ("", [], {}) else None


def _schema(hint: Any, at: str, defaults: bool) -> Schema:
    arguments = get_args(hint)
    match get_origin(hint):
        case None:
            return _plain(hint, at, defaults)
        case origin if origin is Annotated:
            return _marked(hint, at, defaults)
        case origin if origin is Literal:
            return {"type": "string", "enum": list(arguments)}
        case origin if origin in (Union, types.UnionType):
            return _union(arguments, at, defaults)
        case origin if origin is list or (origin is tuple and arguments[1:] == (...,)):
            return {"type": "array", "items": _schema(arguments[0], f"{at}[]", defaults)}
        case origin if origin is dict and arguments[1] is Any:
            return {"type": "object"}
        case origin if origin is dict:
            return {"type": "object", "additionalProperties": _schema(arguments[1], f"{at}{{}}", defaults)}
    raise UnsupportedTypeError(f"{at}: {hint} has no counterpart in a structural schema")


def _plain(hint: Any, at: str, defaults: bool) -> Schema:
    if hint in _SCALARS:
        return dict(_SCALARS[hint])
    if isinstance(hint, type) and issubclass(hint, enum.StrEnum):
        return {"type": "string", "enum": [member.value for member in hint]}
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return object_of(hint, defaults=defaults)
    raise UnsupportedTypeError(f"{at}: {hint} has no counterpart in a structural schema")


def _marked(hint: Any, at: str, defaults: bool) -> Schema:
    metas = [meta for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta)]
    shapes = [meta.extra["shape"] for meta in metas if meta.extra]
    # A shape describes fields that users write, and that the API server passes on: it adds no defaults to them.
    found = object_of(shapes[-1], defaults=False) if shapes else _schema(hint.__origin__, at, defaults)
    for meta in metas:
        found |= meta.extra_json_schema or {}
    return found


def _union(options: tuple[Any, ...], at: str, defaults: bool) -> Schema:
    values = [option for option in options if option is not type(None)]  # None: the field is absent
    if set(values) == {int, str}:
        return dict(_INT_OR_STRING)
    if len(values) != 1:
        raise UnsupportedTypeError(f"{at}: a union of several types has no counterpart in a structural schema")
    return _schema(values[0], at, defaults)
