"""How long answers about tokens are kept, and how many."""

from __future__ import annotations

import pytest

from falcon_listen.token_answers import (
    GOOD_SECONDS,
    LENT_SECONDS,
    MOST_GOOD,
    MOST_REFUSED,
    REFUSED_SECONDS,
    Answer,
    TokenAnswers,
)

GOOD, FORBIDDEN, UNKNOWN = Answer("prometheus", allowed=True), Answer("tenant"), Answer("")


@pytest.mark.parametrize(("answer", "seconds"), [(GOOD, GOOD_SECONDS), (FORBIDDEN, 10.0), (UNKNOWN, REFUSED_SECONDS)])
def test_an_answer_needs_no_further_question_for_a_while(answer: Answer, seconds: float) -> None:
    answers = TokenAnswers()
    answers.keep(b"token", answer, 100.0)
    assert answers.fresh(b"token", 100.0 + seconds - 0.1) == answer
    assert answers.fresh(b"token", 100.0 + seconds) is None
    assert answers.fresh(b"another", 100.0) is None


def test_only_a_good_answer_counts_beyond_that_and_not_for_ever() -> None:
    answers = TokenAnswers()
    for token, answer in ((b"good", GOOD), (b"forbidden", FORBIDDEN), (b"unknown", UNKNOWN)):
        answers.keep(token, answer, 0.0)
    assert answers.lent(b"good", LENT_SECONDS - 0.1) == GOOD
    assert answers.lent(b"good", LENT_SECONDS) is None
    assert answers.lent(b"forbidden", 0.0) is None
    assert answers.lent(b"unknown", 0.0) is None


def test_a_newer_answer_takes_the_place_of_an_earlier_one() -> None:
    answers = TokenAnswers()
    answers.keep(b"token", GOOD, 0.0)
    answers.keep(b"token", FORBIDDEN, 1.0)
    assert (answers.fresh(b"token", 1.0), answers.lent(b"token", 1.0), len(answers)) == (FORBIDDEN, None, 1)
    answers.keep(b"token", GOOD, 2.0)
    assert (answers.fresh(b"token", 2.0), len(answers)) == (GOOD, 1)


def test_memory_is_bounded_and_wrong_tokens_take_no_good_ones_place() -> None:
    answers = TokenAnswers()
    for number in range(MOST_GOOD):
        answers.keep(f"good {number}".encode(), GOOD, float(number))
    for number in range(10 * MOST_REFUSED):
        answers.keep(f"wrong {number}".encode(), UNKNOWN, 100.0)
    assert len(answers) == MOST_GOOD + MOST_REFUSED
    assert answers.lent(b"good 0", 100.0) == GOOD
    answers.keep(b"another", GOOD, 100.0)
    assert answers.lent(b"good 0", 100.0) is None, "the oldest goes"
    assert (answers.lent(b"good 1", 100.0), len(answers)) == (GOOD, MOST_GOOD + MOST_REFUSED)
