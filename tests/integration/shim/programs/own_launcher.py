"""What mpirun does: starts ranks in process groups of their own, passes SIGTERM on, fails if one of them fails.

own_launcher.py COUNT COMMAND …
"""

import os
import signal
import subprocess
import sys
import types

count, command = int(sys.argv[1]), sys.argv[2:]
workers = [
    subprocess.Popen(
        command,
        process_group=0,
        env={**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count)},
    )
    for rank in range(count)
]


def pass_on(number: int, _: types.FrameType | None) -> None:
    for worker in workers:
        worker.send_signal(number)


signal.signal(signal.SIGTERM, pass_on)
codes = [worker.wait() for worker in workers]
sys.exit(max(abs(code) for code in codes))
