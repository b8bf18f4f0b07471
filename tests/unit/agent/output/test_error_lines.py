"""The errors in a rank's output: whole lines wherever reads cut them, each error reported once, the clearest kept."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_agent.output.error_lines import MOST_NEWS, Budget, Errors, FoundError, LineJudge, WholeLines
from falcon_core.errors.classify import MOST_LINE_BYTES
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.last_words import MOST_CHARACTERS
from falcon_core.wire.launcher.printed import MOST_PRINTED

OWN = b"""step 40 loss 2.31
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/job/train.py", line 71, in main
[rank1]:     raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
[rank1]: ValueError: expected sequence of length 64 at dim 1 (got 63)
step 41 loss 2.30
"""
PEERS = b"""Traceback (most recent call last):
  File "/opt/job/train.py", line 75, in main
    dist.all_reduce(total)
RuntimeError: [../gloo/transport/tcp/pair.cc:525] Connection closed by peer [10.0.0.3]:27189
"""
TEXT = st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"\x1b[31m", b"\xff\x00", b"x" * 5000]), max_size=40)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut the data at these places."""
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[first:last] for first, last in itertools.pairwise(places)]


@given(TEXT, st.lists(st.integers(0, 1 << 20), max_size=8))
def test_lines_are_the_same_wherever_the_reads_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = b"".join(parts)
    whole = WholeLines()
    found = b"".join([*(whole.feed(read) for read in pieces(data, cuts)), whole.flush()])
    assert bounded_lines(found) == bounded_lines(data)


def bounded_lines(text: bytes) -> list[bytes]:
    """Return the lines as the classifier judges them: of a long one the two ends."""
    half = MOST_LINE_BYTES // 2
    lines = text.replace(b"\r", b"\n").split(b"\n")
    return [line if len(line) <= MOST_LINE_BYTES else line[:half] + line[-half:] for line in lines]


def test_what_is_kept_of_a_line_without_end_is_bounded() -> None:
    whole = WholeLines()
    for _ in range(100):
        assert whole.feed(b"begin" + b"x" * 100_000 + b"end") == b""
    rest = whole.flush()
    assert len(rest) == MOST_LINE_BYTES
    assert rest.startswith(b"begin")
    assert rest.endswith(b"end")


def test_after_a_gap_the_rest_of_a_line_is_no_line() -> None:
    whole = WholeLines()
    whole.feed(b"half a li")
    whole.skip()
    assert whole.feed(b"ne of another") == b""
    assert whole.feed(b" line\nwhole\n") == b"whole\n"


def read(output: bytes, reads: list[bytes] | None = None) -> list[FoundError]:
    judge, whole = LineJudge(lambda: shipped_judge().classifier), WholeLines()
    told = [one for piece in reads or [output] for one in judge.read(whole.feed(piece))]
    return told + judge.read(whole.flush())


@given(st.lists(st.integers(0, len(PEERS + OWN)), max_size=6))
def test_a_traceback_is_told_once_with_its_place_wherever_it_is_cut(cuts: list[int]) -> None:
    peers, own = read(b"", pieces(PEERS + OWN, cuts))
    assert own.text == "ValueError: expected sequence of length 64 at dim 1 (got 63) (train.py:71 in main)"
    assert own.text == shipped_judge().last_words((PEERS + OWN).decode()).text, "as at a process's end"
    assert own.raised
    assert peers.raised
    assert peers.error_class is not None
    assert peers.error_class.consequence
    assert own.precedence < peers.precedence


def test_a_line_of_hardware_in_a_progress_bar() -> None:
    (told,) = read(b"10%|#  |\r20%|## |\rCUDA error: uncorrectable ECC error encountered\r30%|###|")
    assert told.error_class is not None
    assert (told.error_class.name, told.raised) == ("EccError", False)
    assert told.text == "CUDA error: uncorrectable ECC error encountered"


def test_texts_are_clean_and_bounded() -> None:
    (told,) = read(b"\x1b[31mCUDA error: uncorrectable ECC error encountered token=hunter22222 \x07\n")
    assert "hunter" not in told.text
    assert "\x07" not in told.text
    for output in (
        b"CUDA error: uncorrectable ECC error encountered" + b" x" * 10_000 + b"\n",
        b'Traceback (most recent call last):\n  File "' + b"f" * 3000 + b'", line 3, in g\nValueError: ' + b"y" * 3000,
    ):
        assert [len(told.text) <= MOST_CHARACTERS for told in read(output)] == [True]


def told(kind: str, text: str = "", **fields: object) -> FoundError:
    name = str(fields.get("error_class", ""))
    known = shipped_judge().classifier.table.get(name) if name else None
    return FoundError(text or kind, known, (kind, ""), raised=bool(fields.get("raised", not name)))


def test_the_most_telling_errors_are_kept_and_the_rest_is_counted() -> None:
    errors = Errors()
    for number in range(20):
        errors.add(told(f"lost-{number}", error_class="ConnectionReset"), number)
    errors.add(told("ecc", error_class="EccError"), 20)
    for number in range(3):
        errors.add(told(f"raised-{number}"), 21 + number)
    report = errors.report(2, 7)
    assert [one.text for one in report.printed] == ["ecc", "raised-0", "raised-1", "raised-2"]
    assert [one.error_class for one in report.printed] == ["EccError", "", "", ""]
    assert (report.local_rank, report.more, report.unread_bytes) == (2, 20, 7)
    errors.add(told("raised-3"), 30)
    kept = [one.text for one in errors.report(0, 0).printed]
    assert kept == ["ecc", "raised-1", "raised-2", "raised-3"], "of as telling ones the newest"
    assert len(kept) == MOST_PRINTED


def test_a_new_kind_is_news_and_a_repetition_is_not() -> None:
    errors = Errors()
    assert errors.add(told("bad", "ValueError: step 1"), 1)
    assert not errors.add(told("bad", "ValueError: step 2"), 2)
    (kept,) = errors.report(0, 0).printed
    assert (kept.text, kept.unix_ns) == ("ValueError: step 2", 2), "its newest words"
    assert errors.report(0, 0).more == 1


def test_a_program_that_always_finds_new_errors_is_no_endless_news() -> None:
    errors = Errors()
    assert sum(errors.add(told(f"kind-{number}"), number) for number in range(1000)) == MOST_NEWS


@pytest.mark.parametrize(("seconds", "left"), [(0.0, False), (1.0, False), (6.0, True), (1e9, True)])
def test_a_budget_is_a_share_of_the_time_and_what_was_overdrawn_is_owed(seconds: float, left: bool) -> None:
    budget = Budget(share=0.1, seconds=5.0)
    budget.refill(100.0)
    assert budget.is_left
    budget.spend(1.0)
    budget.refill(100.0 + seconds)
    assert budget.is_left == left
    budget.spend(0.5)
    assert not budget.is_left, "no more than some seconds' share is kept"
