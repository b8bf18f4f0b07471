"""Which rank failed first, read off what launchers print."""

from __future__ import annotations

import pytest

from falcon_core.errors.launchers import first_end, lines_of
from falcon_core.wire.launcher.launch import FirstEnd
from tests.unit.errors.lines import TORCHRUN

# PyTorch 1.13 looks each five seconds: by then the peer has ended as well, and is called the root cause.
OLD_TORCHRUN = """\
Failures:
[1]:
  time      : 2026-11-24_04:05:59
  host      : named-0.named.default.svc.cluster.local
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 13)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 13
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-24_04:05:59
  host      : named-0.named.default.svc.cluster.local
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 12)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
============================================================
"""
MPIRUN_SIGNAL = """\
--------------------------------------------------------------------------
Primary job  terminated normally, but 1 process returned
a non-zero exit code. Per user-direction, the job has been aborted.
--------------------------------------------------------------------------
mpirun noticed that process rank 3 with PID 4711 on node node-b exited on signal 9 (Killed).
--------------------------------------------------------------------------
"""
MPIRUN_CODE = """\
mpirun detected that one or more processes exited with non-zero status, thus causing
the job to be terminated. The first process to do so was:

  Process name: [[26158,1],5]
  Exit code:    2
--------------------------------------------------------------------------
"""
PRTERUN_CODE = """\
prterun detected that one or more processes exited with non-zero status,
thus causing the job to be terminated. The first process to do so was:

   Process name: [prterun-node-a-77@1,2] Exit code:    1
"""


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (TORCHRUN, FirstEnd(rank=3, local_rank=1, signal=9)),
        (TORCHRUN.replace("-9 (", "1 ("), FirstEnd(rank=3, local_rank=1, exit_code=1)),
        ("".join(f"[default0]:{line}\n" for line in TORCHRUN.splitlines()), FirstEnd(rank=3, local_rank=1, signal=9)),
        (TORCHRUN.replace("-9 (", "-15 ("), None),
        (OLD_TORCHRUN, FirstEnd(rank=1, local_rank=1, signal=9)),
        # A library aborts so when a peer is gone.
        (OLD_TORCHRUN.replace("-9 (", "-6 ("), FirstEnd(rank=0, local_rank=0, exit_code=1)),
        (TORCHRUN + TORCHRUN.replace("rank      : 3", "rank      : 7"), FirstEnd(rank=7, local_rank=1, signal=9)),
        (MPIRUN_SIGNAL, FirstEnd(rank=3, signal=9)),
        (MPIRUN_CODE, FirstEnd(rank=5, exit_code=2)),
        (PRTERUN_CODE, FirstEnd(rank=2, exit_code=1)),
        ("", None),
        ("Root Cause (first observed failure):\n", None),
        ("Root Cause (first observed failure):" + "\n" * 1000 + TORCHRUN.rpartition(":\n")[2], None),
        ("ValueError: rank 3 with PID\n", None),
    ],
)
def test_the_rank_that_failed_first(output: str, expected: FirstEnd | None) -> None:
    assert first_end(output) == expected


def test_noise_is_read() -> None:
    for noise in (
        "Root Cause (first observed failure):" * 1800,
        "Process name: [" * 4000,
        "noticed that process rank 1 with PID " * 1700,
    ):
        assert first_end(noise) is None


def test_the_lines_of_one_rank() -> None:
    output = "[rank1]: one\n[rank3]: three\n[rank1]: more\nnobody's\n"
    assert lines_of(output, 1) == "[rank1]: one\n[rank1]: more"
    assert lines_of(output, 2) == ""
