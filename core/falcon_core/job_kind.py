"""Name the kind of a job: jobs of one kind run the same command of the same image, with the same layout of ranks.

What is learned of healthy runs is kept by kind. The namespace is part of it: no tenant's job is ever judged by what
another tenant's jobs have shown. The name is made of hashes, and shows neither of the two.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final

PATTERN: Final = re.compile(r"[0-9a-f]{8}\.[0-9a-f]{16}")  # hash of the namespace, hash of the whole
_SIZES: Final = ("tensor", "context", "expert", "pipeline")


def kind_of(namespace: str, spec: Mapping[str, Any]) -> str:
    """Return the kind of a TrainingJob as ``PATTERN`` has it, from its spec as the API server stores it.

    A spec without a container that trains has a kind as well: such a job never runs.
    """
    parallelism = _mapping(spec.get("parallelism"))
    container = _trainer(spec)
    described = [
        namespace,
        container.get("image"),
        container.get("command"),
        container.get("args"),
        spec.get("replicas"),
        spec.get("procsPerReplica", 1),
        [parallelism.get(size, 1) for size in _SIZES],
    ]
    return f"{_hash([namespace], 8)}.{_hash(described, 16)}"


def _trainer(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    pod = _mapping(_mapping(spec.get("template")).get("spec"))
    listed = pod.get("containers")
    containers = [_mapping(each) for each in listed] if isinstance(listed, list) else []
    name = spec.get("container")
    return next((each for each in containers if name is None or each.get("name") == name), {})


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _hash(value: list[Any], letters: int) -> str:
    return hashlib.sha256(json.dumps(value, default=str).encode()).hexdigest()[:letters]
