"""What is shown to people holds no control characters and no secrets."""

from __future__ import annotations

import pytest

from falcon_core.text import REDACTED, clean, clip


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with figures 12 % and ümläut", "plain, with figures 12 % and ümläut"),
        ("a\x1b[31mred\x1b[0m\x07 line\r\nnext", "ared  line \nnext"),
        ("\x1b]0;title\x07text", "text"),
        ("right\u202eto left", "right to left"),
    ],
)
def test_control_characters_go(text: str, shown: str) -> None:
    assert clean(text) == shown


@pytest.mark.parametrize(
    "secret",
    [
        "https://user:hunter22@example.org/x",
        "WANDB_API_KEY=0123456789abcdef",
        '"password": "correct horse"'.replace(" horse", "horse"),
        "--token abcdef012345",
        "Authorization: Bearer abcdef.ghi",
        "hf_abcdefghijklmnopqrstuvwx",
        "ghp_0123456789abcdefghij0123",
        "AKIAABCDEFGHIJKLMNOP",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl",
    ],
)
@pytest.mark.parametrize("before", ["", "a long text " * 50], ids=["short", "long"])
def test_what_looks_like_a_secret_is_replaced(secret: str, before: str) -> None:
    shown = clean(f"{before}failed with {secret} at step 3")
    assert REDACTED in shown
    for part in ("hunter22", "0123456789abcdef", "correct", "abcdef012345", "abcdef.ghi", "eyJhb", "AKIAAB", "hf_abc"):
        assert part not in shown
    assert shown.endswith("at step 3")


@pytest.mark.parametrize(
    "harmless", ["the token of the cycle", "secret gpt2-falcon-gateway is missing", "tokenizer=bpe", "pods 3/4: passed"]
)
def test_ordinary_words_stay(harmless: str) -> None:
    assert clean(harmless) == harmless


def test_a_text_is_cut_between_words_and_says_so() -> None:
    assert clip("one two three", 13) == "one two three"
    assert clip("one two three four", 14) == "one two three…"
    assert clip("x" * 50, 10) == "x" * 9 + "…"
