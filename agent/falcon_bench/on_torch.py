"""Do the work of the benchmark with PyTorch: on all GPUs, or else on the CPU.

A kind that this PyTorch or this GPU does not have (FP8) is left out, and named.
"""

from collections.abc import Callable  # noqa: F401  in comments

import torch

from falcon_bench.load import Work

TOLERANCE = {"fp32": 1e-2, "fp16": 1e-2, "bf16": 4e-2, "fp8": 1e-1}  # of the largest entry; fp32 may be TF32
_TYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
_GPU_SIZE, _SMOKE_SIZE, _CPU_SIZE = 4096, 2048, 768  # of the matrices, which are square
_GPU_BYTES, _CPU_BYTES = 256 << 20, 64 << 20
_GPU_KINDS = ("fp32", "fp16", "bf16", "fp8")
_MOST_WHY = 200  # characters
_ROWS = (0, 1, 2)  # of a product, compared with a reference in FP64


def devices():  # type: () -> list[torch.device]
    """Return all GPUs, or the CPU where there is none."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.device("cuda", number) for number in range(count)] or [torch.device("cpu")]


def name(device):  # type: (torch.device) -> str
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def works(smoke, skipped):  # type: (bool, dict[str, str]) -> dict[str, list[Work]]
    """Return the works of each kind, one a device; matrix products come last, when the devices are warm.

    ``skipped`` takes the kinds that are left out, with the reason.
    Rates: TFLOP/s of products, GB/s of copies; of a copy within a device bytes read and written both count.
    """
    all_ = devices()
    gpus = all_[0].type == "cuda"
    found = {} if smoke else _copies(all_, gpus)
    size = _CPU_SIZE if not gpus else _SMOKE_SIZE if smoke else _GPU_SIZE
    if not gpus:
        skipped.update(dict.fromkeys(_GPU_KINDS[1:], "there is no GPU, and a CPU is measured in fp32"))
    for kind in _kinds(smoke, gpus):
        try:
            found[kind] = [_product(device, kind, size) for device in all_]
        except (AttributeError, RuntimeError, TypeError) as error:
            # These kinds exist everywhere, so their failure is the device's.
            if kind in ("fp32", "bf16"):
                raise
            skipped[kind] = ("this PyTorch or this GPU has none: %s" % error)[:_MOST_WHY]
    return found


def _copies(all_, gpus):  # type: (list[torch.device], bool) -> dict[str, list[Work]]
    host = torch.device("cpu")
    found = {"copy": [_copy(device, device) for device in all_]}
    if gpus:
        found["host_to_device"] = [_copy(host, device) for device in all_]
        found["device_to_host"] = [_copy(device, host) for device in all_]
    if len(all_) > 1:  # each sends to the next device and receives from the last, all at once
        found["peer"] = [_copy(device, all_[(place + 1) % len(all_)]) for place, device in enumerate(all_)]
    return found


def _kinds(smoke, gpus):  # type: (bool, bool) -> tuple[str, ...]
    if not gpus:
        return ("fp32",)
    return ("bf16",) if smoke else _GPU_KINDS


def _wait(device):  # type: (torch.device) -> None
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _copy(source, target):  # type: (torch.device, torch.device) -> Work
    gpus = "cuda" in (source.type, target.type)
    count = (_GPU_BYTES if gpus else _CPU_BYTES) // 4

    def buffer(device):  # type: (torch.device) -> torch.Tensor
        return torch.ones(count, device=device, pin_memory=gpus and device.type == "cpu")

    before, after = buffer(source), buffer(target)

    def repeat(times):  # type: (int) -> None
        for _ in range(times):
            after.copy_(before, non_blocking=True)
        _wait(source)
        _wait(target)

    return Work((1 + (source == target)) * count * 4 / 1e9, repeat)


def _product(device, kind, size):  # type: (torch.device, str, int) -> Work
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(size, size, generator=generator)
    right = torch.randn(size, size, generator=generator)
    multiply = _scaled(left, right, device) if kind == "fp8" else _plain(left, right, device, _TYPES[kind])
    first = multiply().clone()
    newest = [first]

    def repeat(times):  # type: (int) -> None
        for _ in range(times):
            newest[0] = multiply()
        _wait(device)

    def check():  # type: () -> str
        expected = left[list(_ROWS)].double() @ right.double()
        largest = expected.abs().max().item()
        rows = newest[0][list(_ROWS)].double().cpu()
        wrong = (rows - expected).abs().max().item() / largest
        # The same product must come out each time. A difference shows errors that come and go.
        differs = (newest[0].float() - first.float()).abs().max().item() / largest
        if not max(wrong, differs) <= TOLERANCE[kind]:  # also where one is no number
            return "its %s products are wrong: by %.2g of the largest entry" % (kind, max(wrong, differs))
        return ""

    return Work(2 * size**3 / 1e12, repeat, check)


def _plain(left, right, device, dtype):
    # type: (torch.Tensor, torch.Tensor, torch.device, torch.dtype) -> Callable[[], torch.Tensor]
    own, other = left.to(device, dtype), right.to(device, dtype)
    out = torch.empty(left.shape[0], right.shape[1], device=device, dtype=dtype)
    return lambda: torch.matmul(own, other, out=out)


def _scaled(left, right, device):
    # type: (torch.Tensor, torch.Tensor, torch.device) -> Callable[[], torch.Tensor]
    eight = torch.float8_e4m3fn
    own, other = left.to(device).to(eight), right.t().contiguous().to(device).to(eight).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(own, other, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
