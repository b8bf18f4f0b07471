"""Make features of a line: its words, and pairs of words that stand close to each other, as numbers of two tables."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable
from typing import Final

WORD_BITS: Final = 14
PAIR_BITS: Final = 16
MOST_CHARACTERS: Final = 4096
_MOST_WORDS: Final = 300
_NEAR: Final = 3  # words: no pair is farther apart
_LONG_NUMBER: Final = 4  # digits: such a number is a value, a shorter one may be a code
_LEAST_STEM: Final = 4  # letters that stay when an ending is cut off
_ENDINGS: Final = ("ing", "tion", "ted", "ed", "es", "s", "e")
_WORD_BEGINS: Final = re.compile(r"(?<=[a-z\d])(?=[A-Z][a-z])|(?<=[A-Z])(?=[A-Z][a-z])")
_ADDRESS: Final = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.\d)?\b|\b[0-9a-f]{8,}\b")
# Of Chinese, Japanese and Korean text each character is a word, since no spaces stand between words.
_WORD: Final = re.compile(r"[a-zß-öø-ÿа-яё]+|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]|\d+")


def features(text: str) -> tuple[Counter[int], Counter[int]]:
    """Return how often each word occurs, and each word or pair of words: by their places in the two tables.

    ``text``: without the marks before its lines (``classify.plain_text``).

    Different words may share a place. The time grows with the text's length, and of a long text its ends count.
    """
    words = _words(text)
    pairs = (f"{word} {near}" for at, word in enumerate(words) for near in words[at + 1 : at + 1 + _NEAR])
    both = _places(words, PAIR_BITS)
    both.update(_places(pairs, PAIR_BITS))
    return _places(words, WORD_BITS), both


def _places(names: Iterable[str], bits: int) -> Counter[int]:
    return Counter(zlib.crc32(name.encode()) & ((1 << bits) - 1) for name in names)


def _words(text: str) -> list[str]:
    if len(text) > MOST_CHARACTERS:
        text = f"{text[: MOST_CHARACTERS // 2]} {text[-MOST_CHARACTERS // 2 :]}"
    text = _WORD_BEGINS.sub(" ", text).lower()
    found = [_word(word) for word in _WORD.findall(_ADDRESS.sub("#", text))]
    return found if len(found) <= _MOST_WORDS else found[: _MOST_WORDS // 2] + found[-_MOST_WORDS // 2 :]


def _word(word: str) -> str:
    if word[0].isdigit():
        return "0" if len(word) >= _LONG_NUMBER else word
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word.removesuffix(ending)
    return word
