"""Refuse a pod template of which Falcon cannot build a pod: a part has another type than Kubernetes gives it.

The CRD lets the fields of a pod pass through untyped. This module knows the types of those fields alone that Falcon
reads or adds to. All others are left to the API server, which is asked by a dry run.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

_ROOT: Final = "spec.template"
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
# A map names its known fields, a list holds the shape of its items, a type stands for a plain value.
_RESOURCES: Final[dict[str, Any]] = {"requests": {}, "limits": {}}
_CONTAINER: Final[dict[str, Any]] = {
    "name": str,
    "command": [str],
    "args": [str],
    "env": [{}],
    "volumeMounts": [{"mountPath": str}],
    "resources": _RESOURCES,
    "lifecycle": {"preStop": {}},
}
_TEMPLATE: Final[dict[str, Any]] = {
    "metadata": {"labels": {}, "annotations": {}},
    "spec": {
        "affinity": {
            "podAntiAffinity": {_REQUIRED: [{}]},
            "nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [{"matchFields": [{}]}]}},
        },
        "containers": [_CONTAINER],
        "initContainers": [_CONTAINER],
        "os": {"name": str},
        "resources": _RESOURCES,
        "terminationGracePeriodSeconds": int,
        "tolerations": [{}],
        "volumes": [{}],
    },
}
_WORDS: Final = {
    dict: "a map",
    list: "a list",
    str: "a string",
    int: "an integer",
    bool: "a boolean",
    float: "a number",
}


def null_items(template: dict[str, Any]) -> Iterator[str]:
    """Yield the path of each null in a list."""
    return _null_items(template, _ROOT)


def misfits(template: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield field, message and remedy of each part of another type than Kubernetes'."""
    return _misfits(template, _TEMPLATE, _ROOT)


def _null_items(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _null_items(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            if item is None:
                yield f"{path}[{index}]"
            yield from _null_items(item, f"{path}[{index}]")


def _misfits(value: Any, shape: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if value is None:  # absent, or named by ``null_items``
        return
    found: type = type(value)
    # A shape is a type, or a dict or list that shows what is inside.
    wanted: type = shape if isinstance(shape, type) else type(shape)
    if found is not wanted:  # by the exact type: true is no integer
        message = f"this is {_WORDS.get(found, found.__name__)} where Kubernetes wants {_WORDS[wanted]}"
        yield path, message, "correct it, or remove the field"
    elif isinstance(shape, dict):
        for key, part in shape.items():
            yield from _misfits(value.get(key), part, f"{path}.{key}")
    elif isinstance(shape, list):
        for index, item in enumerate(value):
            yield from _misfits(item, shape[0], f"{path}[{index}]")
