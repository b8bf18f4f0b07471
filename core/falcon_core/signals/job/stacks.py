"""Read the Python stacks that ``faulthandler`` writes when a process gets a signal.

A rank that never arrived at a collective stands somewhere in its own program: the file, the line and the function say
where. The text comes from a file that training processes write, so anything may be in it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from falcon_core.text import clean, clip
from falcon_core.wire.reporting.messages import MAX_FRAMES
from falcon_core.wire.reporting.samples import MAX_PLACE_FRAMES

FRAME_CHARACTERS = 100
PROGRAM_ENDED = "(its program has ended)"  # in place of the frames: such an interpreter answers no signal any more
_FRAME = re.compile(r'^  File "(?P<file>[^"\n]*)", line (?P<line>\d{1,9}|\?\?\?) in (?P<function>[^\n]*)$')
_THREAD = re.compile(r"^(Current thread|Thread) 0x[^\n]*$", re.MULTILINE)
_ALONE = re.compile(r"^Stack \(most recent call first\):$", re.MULTILINE)
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python", "<frozen ")


def answering_thread(text: str) -> list[str]:
    """Return the frames of the thread that the signal found, the innermost first; empty where the text shows none.

    A frame is "function (file:line)". The innermost frame says what the thread does; after it, the frames of installed
    packages are left out, because the program's own say why. At most ``MAX_FRAMES`` frames.
    """
    threads = list(_THREAD.finditer(text))
    # A thread without Python's knowledge may have taken the signal; the oldest thread, the main one, comes last.
    current = [thread for thread in threads if thread[1] == "Current thread"] or threads
    return _frames(text[current[-1].end() :]) if current else []


def sampled_thread(text: str) -> list[str]:
    """Return the frames of the newest sample of a thread that wrote its own stack alone, as ``answering_thread``."""
    samples = list(_ALONE.finditer(text))
    return _frames(text[samples[-1].end() :]) if samples else []


def place_of(frames: Sequence[str]) -> tuple[str, ...]:
    """Return the place where a thread stands: the innermost call, and the program's own function that made the call."""
    return tuple(frames[:MAX_PLACE_FRAMES])


def _frames(text: str) -> list[str]:
    """Return the frames that follow a headline."""
    frames: list[str] = []
    for line in text.splitlines()[1:]:
        found = _FRAME.match(line)
        if found is None:
            break  # the next thread
        library = any(part in found["file"] for part in _LIBRARIES)
        if not frames or not library:
            frames.append(_words(found))
        if len(frames) == MAX_FRAMES:
            break
    return frames


def _words(frame: re.Match[str]) -> str:
    name = frame["file"].rpartition("/")[2] or frame["file"]
    return clip(clean(f"{frame['function']} ({name}:{frame['line']})"), FRAME_CHARACTERS)
