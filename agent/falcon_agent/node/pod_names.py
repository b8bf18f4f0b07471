"""Find the names of the node's pods by uid, from the folders in which the kubelet keeps their containers' output.

Each is called NAMESPACE_NAME_UID. So the daemon needs no right to read pods, which would be a right to read all pods.
"""

from __future__ import annotations

import os
from pathlib import Path


def pod_name(folder: Path, uid: str) -> str:
    """Return NAMESPACE/NAME of a pod; empty where there is no such folder. ``folder``: the host's /var/log/pods."""
    try:
        names = [entry.name for entry in os.scandir(folder) if entry.name.endswith(f"_{uid}")]
    except OSError:
        return ""
    parts = names[0].split("_") if names else []  # neither a namespace nor a pod has "_" in its name
    return f"{parts[0]}/{parts[1]}" if len(parts) == 3 else ""
