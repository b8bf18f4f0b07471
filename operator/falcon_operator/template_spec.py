"""The pod template of a job: read with each null left out, since Kubernetes takes a null for an absent field.

Charts render null where a value is not set. The null is dropped here, once, so that no reader of a template meets it.
A null in a list is not dropped: it would move the items behind it. ``manifests.template`` refuses it.
"""

from __future__ import annotations

from typing import Any

import msgspec


class TemplateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The field of a TrainingJob's spec that holds the template."""

    template: dict[str, Any]

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "template", without_nulls(self.template))


def without_nulls(value: Any) -> Any:
    """Return a copy of decoded JSON in which no map has a null, at any depth."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
