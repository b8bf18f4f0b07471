"""Map the results of NCCL's calls (``ncclResult_t`` of nccl.h) to the classes of errors."""

from __future__ import annotations

from falcon_core.errors.judge import Judge

_RESULTS = {
    1: "ncclUnhandledCudaError",
    2: "ncclSystemError",
    3: "ncclInternalError",
    4: "ncclInvalidArgument",
    5: "ncclInvalidUsage",
    6: "ncclRemoteError",
    8: "ncclTimeout",
}


def result_words(code: int, judge: Judge) -> str:
    """Return NCCL's name of a failed call's result, with the class of errors (``errors.table``) where one fits.

    ``ncclRemoteError (RemoteError)``; an unknown result by its number.
    """
    name = _RESULTS.get(code, f"error {code}")
    error_class = judge.words(name).error_class
    return f"{name} ({error_class})" if error_class else name
