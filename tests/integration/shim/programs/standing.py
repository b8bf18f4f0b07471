"""A rank that writes, in its first line, who it is; then everything about its process that a start decides.

standing.py FOLDER     FOLDER/lines: a line for each start; FOLDER/state-<generation>-<rank>: JSON
"""

import os
import sys

os.write(
    os.open(f"{sys.argv[1]}/lines", os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    f"{os.environ['FALCON_GENERATION']} {os.environ['RANK']} {os.getpid()}\n".encode(),
)

import json  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
from pathlib import Path  # noqa: E402

import heavy  # noqa: E402

own = Path("/proc/self")

state = {
    "argv": sys.argv,
    "arguments": sys.orig_argv,
    "flags": str(sys.flags),
    "options": sys._xoptions,
    "path": sys.path,
    "cwd": str(Path.cwd()),
    "environ": {key: value for key, value in os.environ.items() if key not in ("FALCON_GENERATION", "MASTER_PORT")},
    "port": heavy.port_in_c(),
    "limits": {
        name: resource.getrlimit(getattr(resource, name))
        for name in dir(resource)
        if name.startswith("RLIM") and name != "RLIM_INFINITY"
    },
    "nice": [os.getpriority(os.PRIO_PROCESS, int(thread.name)) for thread in (own / "task").iterdir()],
    "policy": os.sched_getscheduler(0),
    "cpus": sorted(os.sched_getaffinity(0)),
    "group": os.getpgid(0) == os.getpid(),
    "session": os.getsid(0),
    "umask": [
        line
        for line in (own / "status").read_text().splitlines()
        if line.startswith(("Umask", "ShdPnd", "SigPnd", "SigBlk", "SigIgn", "SigCgt"))
    ],
    "score": (own / "oom_score_adj").read_text(),
    "signals": {
        str(number): str(signal.getsignal(number)) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGPIPE)
    },
    "files": sorted(
        str(file.readlink()).split(":")[0].replace(str(os.getpid()), "pid")
        for file in (own / "fd").iterdir()
        if file.is_symlink() and file.exists()
    ),
    "threads": threading.active_count(),
    "hook": sys.excepthook is sys.__excepthook__,
    "main": sorted(vars(sys.modules["__main__"]).keys() & {"__file__", "__spec__", "__cached__"}),
}
mine = Path(sys.argv[1]) / f"state-{os.environ['FALCON_GENERATION']}-{os.environ['RANK']}"
mine.with_suffix(".new").write_text(json.dumps(state))
mine.with_suffix(".new").rename(mine)
print("trains", flush=True)
time.sleep(1000)
