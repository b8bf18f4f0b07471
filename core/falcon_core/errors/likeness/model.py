"""Score how much a line is like the labelled lines of each class, by the learned model that comes with this release."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Collection, Sequence
from importlib import resources
from typing import Any, Final

import numpy as np

from falcon_core.errors.classify import plain_text
from falcon_core.errors.likeness.features import PAIR_BITS, WORD_BITS, features
from falcon_core.errors.likeness.scope import NONE
from falcon_core.errors.table import Source

FILE: Final = "model.npz"
SIZE: Final = (1 << WORD_BITS) + (1 << PAIR_BITS) + len(Source)  # features of a line
# By how much a class must be likelier than what the rules found, in the model's scores: between a line of the class and
# one of another lie about 2. For the fifth and sixth held-out parts 0.4 to 0.6 were equally good. Where the rules find
# nothing, 0.6 leaves fewer alarms than the rules alone, and as few wrong evictions.
CLEARLY: Final = 0.5
MORE_CLEARLY: Final = 0.6  # where the rules find nothing
LEAST_COSTLY: Final = -0.25  # as LEAST, of a class that costs a node and of which the rules say nothing
LEAST: Final = -0.4  # score of a class that a line is like at all: of words that no known line has, all scores are low
_SOURCE_WEIGHT: Final = 0.3  # of the source, next to two blocks of length 1
LEAST_WORDS: Final = 4  # different ones: a short name is like many lines
_LETTERS: Final = re.compile(r"[A-Za-zß-öø-ÿА-яЁё]{2,}|[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{2}")
_REMEMBERED: Final = 1024  # lines: a flood repeats one message with other values
_VALUE: Final = re.compile(r"\d{4,}")
_SOURCES: Final = (Source.OUTPUT, Source.KERNEL, Source.CONDITION)


class Model:
    """A linear model: the score of each class is a weighted sum of the line's features."""

    def __init__(self, classes: Sequence[str], weights: Any, scale: float, bias: Any, rarity: Any) -> None:
        """Take what was learned.

        Args:
            classes: their names; ``NONE`` is one of them.
            weights: int8 [SIZE, classes]; ``scale`` is the weight of 1.
            scale: of the weights.
            bias: float32 [classes].
            rarity: float32 [SIZE - sources]: a feature that few lines have tells more.
        """
        self._place = {name: at for at, name in enumerate(classes)}
        self._names = tuple(classes)
        self._weights, self._scale, self._bias, self._rarity = weights, scale, bias, rarity
        self._remembered = functools.lru_cache(_REMEMBERED)(self._scores)

    def second_opinion(self, text: str, source: Source, found: str, costly: Collection[str] = ()) -> str:
        """Return the class of a line: ``found``, what the rules say of it, or one that is clearly likelier.

        A class that the model does not know stays. ``costly``: classes that cost a node; of these a line has to be
        clearly more like than a line that is no fault, whatever the rules found.
        """
        plain = plain_text(text, source)
        if found not in self._place or len(set(_LETTERS.findall(plain))) < LEAST_WORDS:
            return found
        scores = self._remembered(_VALUE.sub("0000", plain), source)
        best = int(scores.argmax())
        name = self._names[best]
        clearly = scores[best] - scores[self._place[found]] >= (CLEARLY if found else MORE_CLEARLY)
        least = LEAST_COSTLY if name in costly and not found else LEAST
        if name in costly:
            clearly &= scores[best] - scores[self._place[NONE]] >= MORE_CLEARLY
        return name if clearly and scores[best] >= least else found

    def likeliest_fault(self, text: str, source: Source) -> str:
        """Return the class of the faults that a line is most like, where it is certain that it is no healthy one."""
        scores = self._remembered(_VALUE.sub("0000", plain_text(text, source)), source)
        return max((float(score), name) for score, name in zip(scores, self._names, strict=True) if name != NONE)[1]

    def scores(self, text: str, source: Source) -> Any:
        """Return the score of each class: float32 [classes]."""
        return self._scores(plain_text(text, source), source)

    def _scores(self, text: str, source: Source) -> Any:
        places, values = vector(text, source, self._rarity)
        return values @ self._weights[places].astype(np.float32) * self._scale + self._bias


def vector(text: str, source: Source | None, rarity: Any) -> tuple[Any, Any]:
    """Return the features of a line that are not 0: their places, int64 [n], and values, float32 [n].

    ``text``: as of ``features``.
    """
    words, both = features(text)
    blocks = [_block(words, 0, rarity), _block(both, 1 << WORD_BITS, rarity)]
    at = [len(rarity) + _SOURCES.index(source)] if source is not None else []
    of_source = np.array(at, dtype=np.int64), np.full(len(at), _SOURCE_WEIGHT)
    places, values = zip(*blocks, of_source, strict=True)
    return np.concatenate(places), np.concatenate(values).astype(np.float32)


def _block(counts: Counter[int], first: int, rarity: Any) -> tuple[Any, Any]:
    places = np.array(sorted(counts), dtype=np.int64)
    values = (1 + np.log([counts[place] for place in places.tolist()])) * rarity[places + first]
    length = float(np.sqrt((values * values).sum()))
    return places + first, values / length if length else values


@functools.cache
def shipped_model() -> Model:
    """Return the model that comes with this release; reading it takes some milliseconds and 4 MB."""
    with resources.files("falcon_core.errors.likeness").joinpath(FILE).open("rb") as file, np.load(file) as learned:
        return Model(
            [str(name) for name in learned["classes"]],
            learned["weights"],
            float(learned["scale"]),
            learned["bias"],
            learned["rarity"],
        )
