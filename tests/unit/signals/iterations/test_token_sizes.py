"""Tokens with wildcards in place of sizes that vary: the look-up by tables says what membership says."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.signals.calls.stream import Calls
from falcon_core.signals.iterations.variable_sizes import Varying

_NUMBERS = st.integers(0, 40)
_SETS = st.frozensets(_NUMBERS, max_size=6)


@given(
    st.lists(st.tuples(st.integers(-41, 41), _NUMBERS), max_size=50),
    _SETS,
    _SETS,
)
def test_a_call_is_a_wildcard_where_its_kind_varies_and_its_token_is_not_kept(
    pairs: list[tuple[int, int]], kinds: frozenset[int], kept: frozenset[int]
) -> None:
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    tokens, of_kinds = columns[:, 0], columns[:, 1]
    nothing = np.zeros(len(pairs), dtype=np.int64)
    calls = Calls(
        tokens,
        nothing,
        nothing,
        nothing,
        nothing.astype(np.bool_),
        nothing.astype(np.uint8),
        of_kinds,
        nothing,
    )
    expected = [-1 - kind if kind in kinds and token not in kept else token for token, kind in pairs]
    assert Varying(kinds, kept).tokens(calls).tolist() == expected
