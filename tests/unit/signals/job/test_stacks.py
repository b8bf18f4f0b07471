"""Stacks as ``faulthandler`` writes them, and what else may lie in that file."""

from __future__ import annotations

import pytest

from falcon_core.signals.job.stacks import FRAME_CHARACTERS, answering_thread, place_of, sampled_thread
from falcon_core.wire.reporting.messages import MAX_FRAMES

WAITING = """Thread 0x00007fa266b896c0 (most recent call first):
  File "/opt/job/loader.py", line 3 in fetch
  File "/usr/lib/python3.11/threading.py", line 975 in run

Current thread 0x00007fa266e482c0 (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 2810 in all_reduce
  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py", line 83 in wrapper
  File "/opt/job/train.py", line 40 in step
  File "/opt/job/train.py", line 71 in main
  File "/opt/job/train.py", line 80 in <module>
"""


def test_the_innermost_call_and_the_programs_own() -> None:
    assert answering_thread(WAITING) == [
        "all_reduce (distributed_c10d.py:2810)",
        "step (train.py:40)",
        "main (train.py:71)",
        "<module> (train.py:80)",
    ]


def test_without_a_current_thread_the_main_one() -> None:
    """Where a thread that Python does not know took the signal; the newest thread comes first."""
    assert answering_thread(WAITING.replace("Current thread", "Thread"))[1] == "step (train.py:40)"


def test_the_newest_of_several() -> None:
    later = WAITING.replace("train.py", "later.py")
    assert answering_thread(WAITING + later)[1] == "step (later.py:40)"


@pytest.mark.parametrize(
    "text", ["", "\0" * 100, "Current thread 0x1", "Current thread 0x1\n  <no Python frame>\n", "File\n" * 1000]
)
def test_what_holds_no_stack(text: str) -> None:
    assert answering_thread(text) == []


def test_names_are_bounded_and_printable() -> None:
    frame = '  File "/opt/\x1b[31m' + "x" * 5000 + '.py", line 7 in f\x07\n'
    found = answering_thread("Current thread 0x1 (most recent call first):\n" + frame * 100)
    assert len(found) == MAX_FRAMES
    assert all(len(text) <= FRAME_CHARACTERS and text.isprintable() for text in found)


ALONE = """Stack (most recent call first):
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 1286 in _try_get_data
  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 733 in __next__
  File "/opt/job/train.py", line 35 in main
  File "/opt/job/train.py", line 80 in <module>
"""


def test_a_thread_that_wrote_its_own_stack_alone() -> None:
    frames = sampled_thread("a torn line\n" + ALONE.replace("train.py", "before.py") + ALONE)
    assert frames == ["_try_get_data (dataloader.py:1286)", "main (train.py:35)", "<module> (train.py:80)"]
    assert place_of(frames) == ("_try_get_data (dataloader.py:1286)", "main (train.py:35)")


@pytest.mark.parametrize("text", ["", "Stack", WAITING, "Stack (most recent call first):\n  <no Python frame>\n"])
def test_what_is_no_sample_has_no_place(text: str) -> None:
    assert place_of(sampled_thread(text)) == ()
