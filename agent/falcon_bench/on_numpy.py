"""Do the work of the benchmark with NumPy, on the CPU."""

import numpy as np

from falcon_bench.load import Work

TOLERANCE = 1e-4  # of the largest entry, in single precision
_SIZE = 768
_SMOKE_SIZE = 384  # a machine that has a sixth of a core left is to be measured in half a second, too
_BYTES = 64 << 20


def works(smoke, skipped):  # type: (bool, dict[str, str]) -> dict[str, list[Work]]
    """Return the works of each kind. Rates: TFLOP/s of products, GB/s of copies, bytes read and written."""
    skipped.update(dict.fromkeys(("fp16", "bf16", "fp8"), "the container has no PyTorch"))
    found = {} if smoke else {"copy": [_copy()]}
    found["fp32"] = [_product(_SMOKE_SIZE if smoke else _SIZE)]
    return found


def _copy():  # type: () -> Work
    source = np.ones(_BYTES // 8)
    target = np.empty_like(source)

    def repeat(times):  # type: (int) -> None
        for _ in range(times):
            np.copyto(target, source)

    return Work(2 * _BYTES / 1e9, repeat)


def _product(size):  # type: (int) -> Work
    random = np.random.RandomState(1)
    left, right = (random.standard_normal((size, size)).astype(np.float32) for _ in range(2))
    out = np.empty_like(left)

    def repeat(times):  # type: (int) -> None
        for _ in range(times):
            np.matmul(left, right, out=out)

    def check():  # type: () -> str
        # A device that computes wrongly may be as fast as any other, so the result is compared as well.
        expected = left.astype(np.float64) @ right.astype(np.float64)
        wrong = float(np.abs(out - expected).max() / np.abs(expected).max())
        return "" if wrong <= TOLERANCE else "its fp32 products are wrong: by %.2g of the largest entry" % wrong

    return Work(2 * size**3 / 1e12, repeat, check)
