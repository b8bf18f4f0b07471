"""Compute what changes of a node's annotations while it is a spare: those that autoscalers respect come and go.

An administrator may use the same keys. So the node records which annotations the operator has set, with their values
(``RECORD``): only these are removed, and only while they have these values. The record also outlives the setting: what
an earlier setting has put on a node is removed, too. Keys and values hold no ``=`` and no comma (``KEY``, ``VALUE``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from falcon_operator.api.common import GROUP

RECORD: Final = f"{GROUP}/spare-annotations"  # key=value, separated by commas
KEY: Final = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
VALUE: Final = r"[-A-Za-z0-9_.]{1,63}"
NONE: Final[Mapping[str, str]] = {}


def recorded(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that the operator has set on the node, as it has set them."""
    entries = (entry.partition("=") for entry in annotations.get(RECORD, "").split(","))
    return {key: value for key, separator, value in entries if separator}


def relevant(annotations: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """Return those of a node's annotations that ``changes`` reads."""
    keys = {RECORD, *wanted, *recorded(annotations)}
    return {key: annotations[key] for key in keys if key in annotations}


def changes(annotations: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str | None]:
    """Return the merge patch of a node's annotations (None: removed); empty where nothing is to change.

    ``wanted`` is what the operator keeps on the node: the setting on a spare, nothing on any other node.
    """
    ours = recorded(annotations)
    change: dict[str, str | None] = {
        key: None for key, value in ours.items() if wanted.get(key) != value and annotations.get(key) == value
    }
    kept: dict[str, str] = {}
    for key, value in wanted.items():
        if key not in annotations or key in change:
            change[key] = kept[key] = value
        elif annotations[key] == value == ours.get(key):
            kept[key] = value
        # Any other value, or this one without a record, is an administrator's.
    record = ",".join(f"{key}={value}" for key, value in sorted(kept.items())) or None
    if record != annotations.get(RECORD):
        change[RECORD] = record
    return change
