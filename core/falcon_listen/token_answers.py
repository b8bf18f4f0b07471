"""Keep for a while what the API server has answered about tokens, in bounded memory. No I/O.

Answers are kept by a hash of the token, so that memory holds no token. Good and refused ones are kept apart: however
many wrong tokens arrive, they take no good one's place.
"""

from __future__ import annotations

from typing import Final, NamedTuple

GOOD_SECONDS: Final = 60.0  # a token that is withdrawn is served for as long
REFUSED_SECONDS: Final = 10.0  # a right that is given works after as long
LENT_SECONDS: Final = 300.0  # a good answer counts for as long while the API server gives no other
MOST_GOOD: Final = 64
MOST_REFUSED: Final = 256


class Answer(NamedTuple):
    """The API server's answer about a token."""

    user: str  # "" where the token is not valid
    allowed: bool = False  # whether this user may read the page


class _Kept(NamedTuple):
    answer: Answer
    at: float  # seconds, of a clock that never goes back


class TokenAnswers:
    """Answers by the hash of their token. Times are seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._good: dict[bytes, _Kept] = {}  # both: the oldest answer first
        self._refused: dict[bytes, _Kept] = {}

    def __len__(self) -> int:
        """Return the number of answers that are kept."""
        return len(self._good) + len(self._refused)

    def fresh(self, token: bytes, now: float) -> Answer | None:
        """Return an answer that needs no further question; None where the API server has to be asked."""
        for kept, seconds in ((self._good.get(token), GOOD_SECONDS), (self._refused.get(token), REFUSED_SECONDS)):
            if kept is not None and now - kept.at < seconds:
                return kept.answer
        return None

    def lent(self, token: bytes, now: float) -> Answer | None:
        """Return the good answer that counts while the API server gives no other; None where there is none."""
        kept = self._good.get(token)
        return kept.answer if kept is not None and now - kept.at < LENT_SECONDS else None

    def keep(self, token: bytes, answer: Answer, now: float) -> None:
        """Keep an answer in the place of an earlier one. Where there is no room, the oldest of its kind goes."""
        self._good.pop(token, None)
        self._refused.pop(token, None)
        kind, most = (self._good, MOST_GOOD) if answer.allowed else (self._refused, MOST_REFUSED)
        if len(kind) >= most:
            del kind[next(iter(kind))]
        kind[token] = _Kept(answer, now)
