"""Ranks that print, raise and stay: what the agent reads of them while they live. ``raising.py FOLDER WHAT``.

Each waits for a file FOLDER/go, and then does WHAT: ``raise`` in the main thread while another thread keeps the process
alive, ``catch`` and log an exception again and again, ``flood`` and then raise, or raise and ``crash`` while the
interpreter ends. With ``again`` the first generation raises and takes a second to end, and the next one catches the
same error. FOLDER/printed-RANK is the time just before the last traceback is written (unix ns).
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

FLOOD_BYTES = 150_000_000
FLOOD_BYTES_PER_SECOND = 50_000_000


def step(batch: int) -> None:
    raise ValueError(f"batch {batch} has 63 features, expected 64")


def flood() -> None:
    block = b"".join(b"step %07d: loss 2.3172, 812 tokens/s, lr 0.0003\n" % number for number in range(2000))
    began, written = time.monotonic(), 0
    while written < FLOOD_BYTES:
        if written > (time.monotonic() - began) * FLOOD_BYTES_PER_SECOND:
            time.sleep(0.001)
            continue
        sys.stdout.buffer.write(block)
        written += len(block)
    sys.stdout.flush()


def again() -> None:
    """Raise in the first generation, whose process takes a second to end; catch the error in the next one."""
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        signal.signal(signal.SIGTERM, lambda *_: threading.Timer(1.0, os._exit, [0]).start())
        return
    try:
        step(4711)
    except ValueError:
        logging.exception("a batch is left out")
    time.sleep(1000)


def main() -> None:
    folder, what = Path(sys.argv[1]), sys.argv[2]
    print("training", flush=True)
    if what == "crash":
        atexit.register(os.abort)
    else:
        threading.Thread(target=time.sleep, args=(1000,)).start()
    while not (folder / "go").exists():
        time.sleep(0.01)
    if what == "again":
        again()
    if what == "flood":
        flood()
    for batch in range(100 if what == "catch" else 0):
        try:
            step(batch)
        except ValueError:
            logging.exception("batch %d is left out", batch)
        time.sleep(0.02)
    (folder / f"printed-{os.environ['RANK']}").write_text(str(time.time_ns()))
    step(4711)


if __name__ == "__main__":
    main()
