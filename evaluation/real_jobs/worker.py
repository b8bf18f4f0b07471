"""Plays cases with the code on PYTHONPATH: a case a line of standard input, an outcome a line of standard output."""

from __future__ import annotations

import sys
from collections.abc import Callable

import msgspec

from evaluation.real_jobs.outcome import Case, Code, Facts
from evaluation.real_jobs.room import Room


def main(code_of: Callable[[Facts], Code]) -> None:
    """Play the cases until standard input ends."""
    for line in sys.stdin.buffer:
        outcome = Room(msgspec.json.decode(line, type=Case), code_of).play()
        sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
        sys.stdout.buffer.flush()
