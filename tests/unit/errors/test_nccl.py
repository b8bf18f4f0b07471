"""NCCL's results in words, and the classes that they belong to."""

from __future__ import annotations

import pytest

from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.nccl import result_words


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "ncclUnhandledCudaError (CudaError)"),
        (2, "ncclSystemError (OtherNetworkError)"),
        (3, "ncclInternalError (NcclInternalError)"),
        (6, "ncclRemoteError (RemoteError)"),
        (9, "error 9"),
        (1 << 16, "error 65536"),
    ],
)
def test_a_result_has_a_name_and_a_class(code: int, words: str) -> None:
    assert result_words(code, shipped_judge()) == words
