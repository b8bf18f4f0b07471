"""Sound objects, and changes to them by path: a bad spec is a sound spec with one thing wrong."""

from __future__ import annotations

import copy
from typing import Any

Manifest = dict[str, Any]
Changes = dict[str, Any]

REMOVED = object()  # as a value: the field is taken out

TRAINING_JOB: Manifest = {
    "apiVersion": "falcon.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "gpt2", "namespace": "default"},
    "spec": {
        "replicas": 4,
        "procsPerReplica": 8,
        "template": {
            "spec": {
                "containers": [
                    {"name": "trainer", "image": "registry.example.com/train:1", "command": ["python", "train.py"]}
                ]
            }
        },
    },
}

WARM_POOL: Manifest = {
    "apiVersion": "falcon.dev/v1alpha1",
    "kind": "WarmPool",
    "metadata": {"name": "spares"},
    "spec": {"nodeSelector": {"pool": "spares"}},
}


def changed(manifest: Manifest, changes: Changes) -> Manifest:
    """Return a copy with the values at their dotted paths (a number is a list's index); missing objects are made."""
    result = copy.deepcopy(manifest)
    for path, value in changes.items():
        *way, last = path.split(".")
        place: Any = result
        for step in way:
            place = place[int(step)] if isinstance(place, list) else place.setdefault(step, {})
        if value is REMOVED:
            del place[last]
        elif isinstance(place, list):
            place.insert(int(last), value)
        else:
            place[last] = value
    return result
