"""Many patterns that are looked for at once find what each of them finds alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from falcon_core.errors.patterns import PatternSet, compiled, loosened

WRITTEN = (
    "out of memory",
    r"NCCL (?:WARN|INFO).{0,40}timeout",
    r"^Xid \d+",
    r"rank \d+ (?:died|ended)",
    r"[kK]ill(?:ed)?",
    r"\d+ of \d+",  # no word of it is sure
    r"Gerät \d+ ist weg",
    r"\xe9chec",
    r"[\x80-\xff]{3}",
)
PIECES = [*"aksé07 \n", "out of ", "memory", "OUT OF MEMORY", "nccl warn ", "timeout", "Xid 79", "rank 3 ", "died"]
PIECES += ["KILLED", "Gerät 4", " ist weg", " IST WEG"]
LINES = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(max_size=30)


@pytest.mark.parametrize("case", [True, False], ids=["as written", "case ignored"])
@given(
    lines=st.lists(LINES, max_size=8),
    tail=st.binary(max_size=6),
)
def test_a_set_finds_what_each_pattern_finds_alone(lines: list[str], tail: bytes, *, case: bool) -> None:
    sources = [loosened(pattern, case=case) for pattern in WRITTEN]
    together = PatternSet(sources)
    for text in [line.encode(errors="surrogatepass") + tail for line in lines]:
        alone = [index for index, source in enumerate(sources) if compiled(source).search(text) is not None]
        assert together.matching(text) == alone
        assert together.any(text) == bool(alone)


def test_no_patterns_match_nothing() -> None:
    assert PatternSet([]).matching(b"anything") == []
    assert not PatternSet([]).any(b"anything")
    assert PatternSet([b"\xc3\xa9chec"]).matching("échec".encode()) == [0]
