"""Lines of accelerators, runtimes and libraries, and users' bugs of many shapes: written before a look at the rules.

The model of likeness has not learned from them: with them it judged fewer faults of part two rightly.
"""

from __future__ import annotations

import msgspec
import pytest

from evaluation.errors.__main__ import is_class_right
from evaluation.errors.judged import judged
from evaluation.errors.lines import PART_ONE, _labelled
from falcon_core.errors.judge import shipped_judge

UNKNOWN = 12  # of the lines: no rule tells their classes apart
LINES = [
    _labelled(msgspec.json.decode(line), "other_stacks.jsonl")
    for line in (PART_ONE / "other_stacks.jsonl").read_bytes().splitlines()
]


def test_the_lines_have_their_classes_and_healthy_ones_cost_no_node() -> None:
    found = [judged(line) for line in LINES]
    wrong = [each.line.text for each in found if not is_class_right(each)]
    assert len(wrong) <= UNKNOWN, wrong
    healthy = [each for each in found if each.line.error_class == "Benign"]
    assert [each.line.text for each in healthy if each.known is not None and each.known.costs_node] == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("RuntimeError: Invalid device string: 'cuda:hbm'", "ProgramError"),
        ("KeyError: 'fatal_hardware_error'", "ProgramError"),
        ("ValueError: Unknown fault policy 'uncorrectable_ecc'", "ProgramError"),
        ("RuntimeError: NPU 3 is hung and must be reset", "GpuFault"),
        ("RuntimeError: the optimizer state must be reset before a new epoch", "ProgramError"),
        ("RuntimeError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "CudaError"),
        ("Error 803: system has unsupported display driver / cuda driver combination", "GpuDriverError"),
        ("grpc._channel._InactiveRpcError: status = StatusCode.DEADLINE_EXCEEDED", "OtherNetworkError"),
    ],
)
def test_the_kinds_have_their_classes(words: str, expected: str) -> None:
    assert shipped_judge().words(words).error_class == expected


def test_a_users_error_that_reads_like_no_fault_ends_the_job_if_its_likeliest_fault_does() -> None:
    """The second one is most like a service that is away, though the rules take it for the program's own error."""
    said = "ValueError: --load_best_model_at_end requires the save and eval strategy to match: steps, epoch"
    passing = "KeyError: 'feature_view/users_v7' is not loaded yet on any replica of the feature store"
    for words, fails in ((said, True), (passing, False)):
        known = shipped_judge().get(shipped_judge().words(words).error_class)
        assert known is not None
        assert known.permanent == fails, words
