"""Read a small file in which the pod's agent asks the training script for something.

It lies next to the shim's control file, in a folder that the agent alone can write.
"""

from __future__ import annotations

import json
import os
import stat
from typing import Any, Tuple

from falcon_torch.interruption import of_a_handler

MOST_BYTES = 1 << 16
CONTROL_VARIABLE = "FALCON_CONTROL"


def run_dir() -> str:
    """Return the folder in which agent and launcher keep their files; "" where no launcher has started this process."""
    control = os.environ.get(CONTROL_VARIABLE)
    return os.path.dirname(os.path.dirname(os.path.abspath(control))) if control else ""


class AgentFile:
    """A JSON file of the agent's. While it stays the same, a look costs one ``lstat``."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._stamp: Tuple[int, int] | None = None
        self._content: Any = None

    @classmethod
    def of_this_pod(cls, name: str) -> AgentFile | None:
        """Return the file of this name; None where no launcher of Falcon's has started this process."""
        run = run_dir()
        return cls(os.path.join(run, "agent", name)) if run else None

    def content(self) -> Any:
        """Return the file's content; None where there is no file, or it cannot be read."""
        try:
            about = os.lstat(self._path)
            # The agent replaces the file as a whole: the same inode and time mean the same content.
            if (about.st_ino, about.st_mtime_ns) != self._stamp:
                self._content = _json(self._path)
                self._stamp = (about.st_ino, about.st_mtime_ns)
        except (OSError, ValueError, RecursionError) as error:
            if of_a_handler(error):
                raise
            return None
        return self._content


def _json(path: str) -> Any:
    """Read a small regular file. Raises OSError or ValueError."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        about = os.fstat(file)
        if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
            raise OSError(f"{path} is not what the agent writes")
        return json.loads(os.pread(file, MOST_BYTES, 0))
    finally:
        os.close(file)
