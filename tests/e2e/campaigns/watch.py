"""What the operator has written down, and when it could be read: each version of an object, as the API server told it.

The operator stores a decision in the TrainingRun before it acts, so the arrival of that version is the end of the
detection. Arrivals are times of the benchmark's clock; operator, agents and ranks run on the same machine here.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from types import TracebackType
from typing import Self

import msgspec

from dev.kubectl import Json, Kubectl


class Version(msgspec.Struct, frozen=True):
    """One version of the object: when it was read (unix seconds), and what it says."""

    at: float
    object: Json


class Watch:
    """Keeps the versions of one object of the job's namespace, from now on, oldest first."""

    def __init__(self, kubectl: Kubectl, plural: str, name: str) -> None:
        self._path = (
            f"/apis/falcon.dev/v1alpha1/namespaces/{kubectl.namespace}/{plural}"
            f"?watch=true&fieldSelector=metadata.name%3D{name}"
        )
        self._environment = {**os.environ, "KUBECONFIG": str(kubectl.kubeconfig)}
        self._versions: list[Version] = []
        self._ended = threading.Event()
        self._process = self._started()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._ended.set()
        self._process.kill()
        self._thread.join()
        self._process.wait()

    def since(self, at: float) -> list[Version]:
        """Return the versions that were read after ``at`` (unix seconds)."""
        return [version for version in list(self._versions) if version.at > at]

    def forget(self) -> None:
        """Forget what was read so far: the newest version stays."""
        self._versions = self._versions[-1:]

    def _started(self) -> subprocess.Popen[bytes]:
        command = ["kubectl", "get", "--raw", self._path]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=self._environment)

    def _read(self) -> None:
        while not self._ended.is_set():
            assert self._process.stdout is not None
            for line in self._process.stdout:
                at, event = time.time(), json.loads(line)
                if event["type"] in ("ADDED", "MODIFIED"):
                    self._versions.append(Version(at, event["object"]))
            self._process.wait()
            if not self._ended.wait(0.2):  # the API server ends a watch after a while
                self._process = self._started()
