"""Decode JSON from another process, which may be too long, nested without end, or no JSON at all."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

T = TypeVar("T")


class BoundedDecoder(Generic[T]):
    """Decode messages of one type; ``noun`` names such a message in an error, as in "an answer"."""

    def __init__(self, kind: type[T], *, noun: str, most_bytes: int, error: type[ValueError]) -> None:
        self._decoder = msgspec.json.Decoder(kind)
        self._noun = noun
        self._most_bytes = most_bytes
        self._error = error

    def decode(self, raw: bytes) -> T:
        """Decode a message. Unknown fields are those of a later release and are left out.

        Raises:
            ValueError: Of the type that the decoder was made with: the bytes are too many, or no such message.
        """
        if len(raw) > self._most_bytes:
            raise self._error(f"{len(raw)} bytes: {self._noun} has at most {self._most_bytes}")
        try:
            return self._decoder.decode(raw)
        # Brackets that are nested without end raise a RecursionError, and broken UTF-8 its own error.
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._error(str(error)) from error
