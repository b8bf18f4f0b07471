"""Keys as text, and the range that a prefix means to etcd."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from falcon_etcd._model import decode_key, encode_key, prefix_range

KEYS = st.binary(min_size=1, max_size=6)
EDGES = st.lists(st.sampled_from([0, 1, 0x2F, 0x7E, 0xFE, 0xFF]), min_size=1, max_size=4).map(bytes)


def in_range(key: bytes, start: bytes, end: bytes) -> bool:
    """Check a key by etcd's own rules: NUL as the end means "no end", and NUL is the smallest key."""
    return start <= key and (end == b"\0" or key < end)


@given(KEYS | EDGES, st.binary(max_size=4) | EDGES)
def test_the_range_holds_exactly_the_keys_with_the_prefix(key: bytes, prefix: bytes) -> None:
    assume(key)
    start, end = prefix_range(decode_key(prefix))
    assert in_range(key, start, end) == key.startswith(prefix)


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        ("/falcon/v1/", (b"/falcon/v1/", b"/falcon/v10")),
        ("", (b"\0", b"\0")),
        ("a\udcff", (b"a\xff", b"b")),
        ("\udcff\udcff", (b"\xff\xff", b"\0")),
    ],
)
def test_known_ranges(prefix: str, expected: tuple[bytes, bytes]) -> None:
    assert prefix_range(prefix) == expected


@given(st.binary(max_size=8))
def test_any_key_survives_as_text(key: bytes) -> None:
    assert encode_key(decode_key(key)) == key
