"""What one interposed collective costs in track mode, and where it goes: ``python -m benchmarks.shim.hook``.

The same program calls a stand-in Gloo collective that returns at once, with and without the shim preloaded, in turns;
the difference of the medians is the hook. The parts (clock, check word, append) are measured in the same runs, and so
is what NCCL reports of one collective through its profiler interface. A third run has the shim switched off.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from pathlib import Path

from falcon_core.wire.launcher.control import Mode, pack_control

CALLS = 400_000
ROUNDS = 7
BENCH = Path(os.environ.get("SHIM_TEST_OUT", "")) / "hook_bench"
SHIM = Path(os.environ.get("SHIM_OUT", "")) / "libfalcon_shim.so"

Figures = dict[str, dict[str, float]]


def _run(folder: str, shim: bool, off: bool = False) -> Figures:
    environment = {**os.environ, "FALCON_RING_DIR": folder, "RANK": "0", "WORLD_SIZE": "8"}
    if off:
        control = Path(folder) / "control"
        control.write_bytes(pack_control(Mode.OFF, 1))
        environment["FALCON_CONTROL"] = str(control)
    if shim:
        environment["LD_PRELOAD"] = str(SHIM)
    done = subprocess.run([str(BENCH), str(CALLS), folder], env=environment, check=True, capture_output=True, text=True)
    figures: Figures = json.loads(done.stdout)
    return figures


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        runs = [(_run(folder, False), _run(folder, True), _run(folder, True, off=True)) for _ in range(ROUNDS)]

    def median(name: str, at: int, percentile: str) -> float:
        return statistics.median(run[at][name][f"{percentile}_ns"] for run in runs)

    for percentile in ("p10", "p50", "p90"):
        bare, hooked = median("call", 0, percentile), median("call", 1, percentile)
        print(f"{percentile}: bare {bare:6.1f} ns, hooked {hooked:6.1f} ns, the hook {hooked - bare:6.1f} ns")
    clock, append, check = (median(name, 1, "p50") for name in ("clock", "append", "check"))
    rest = median("call", 1, "p50") - median("call", 0, "p50") - 2 * clock - append
    print(
        f"parts (p50): 2 clock readings {2 * clock:.1f} ns, append {append:.1f} ns (its check word {check:.1f} ns), "
        f"the rest {rest:.1f} ns"
    )
    off = median("call", 2, "p50") - median("call", 0, "p50")
    print(f"switched off (p50): the hook {off:.1f} ns")
    reported, quiet = median("plugin", 1, "p50"), median("plugin", 2, "p50")
    print(
        f"NCCL's profiler interface, all that is reported of one collective (p50): {reported:.1f} ns, "
        f"switched off {quiet:.1f}"
    )


if __name__ == "__main__":
    main()
