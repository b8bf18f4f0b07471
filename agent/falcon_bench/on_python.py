"""Do the work of the benchmark without PyTorch and NumPy: what the standard library does in C, on one core."""

import hashlib

from falcon_bench.load import Work

_BYTES = 1 << 20
_COPIED = 64 << 20


def works(smoke, skipped):  # type: (bool, dict[str, str]) -> dict[str, list[Work]]
    """Return the works of each kind. Rates: GB/s of SHA-256, and of copies, bytes read and written."""
    skipped.update(dict.fromkeys(("fp32", "fp16", "bf16", "fp8"), "the container has neither PyTorch nor NumPy"))
    found = {} if smoke else {"copy": [_copy()]}
    found["sha256"] = [_digest()]
    return found


def _copy():  # type: () -> Work
    source, target = memoryview(bytearray(_COPIED)), memoryview(bytearray(_COPIED))

    def repeat(times):  # type: (int) -> None
        for _ in range(times):
            target[:] = source

    return Work(2 * _COPIED / 1e9, repeat)


def _digest():  # type: () -> Work
    text = bytes(_BYTES)
    expected = hashlib.sha256(text).digest()
    newest = [expected]

    def repeat(times):  # type: (int) -> None
        for _ in range(times):
            newest[0] = hashlib.sha256(text).digest()

    return Work(_BYTES / 1e9, repeat, lambda: "" if newest[0] == expected else "its digests are wrong")
