"""A musl program that inherits ``LD_PRELOAD``, as the child of a glibc shell does: it must not notice.

Runs where a musl loader is installed (Debian: package ``musl``) or FALCON_MUSL_LOADER names one.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.shim.launching import SHIM

MACHINE = platform.machine()
LOADER = Path(os.environ.get("FALCON_MUSL_LOADER", f"/lib/ld-musl-{MACHINE}.so.1"))
PROGRAM = """
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
static void* thread(void* unused) { return unused; }
int main(void) {
  pthread_t created;
  if (pthread_create(&created, NULL, thread, NULL) != 0 || pthread_join(created, NULL) != 0) return 1;
  puts(getenv("LD_PRELOAD"));
  return 7;
}
"""


@pytest.mark.skipif(not LOADER.exists(), reason="no musl here: install it, or name its loader in FALCON_MUSL_LOADER")
def test_a_musl_child_prints_and_returns_what_it_would_alone(tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    program = tmp_path / "program"
    build = (sys.executable, "-m", "ziglang", "cc", "-target", f"{MACHINE}-linux-musl", "-dynamic")
    subprocess.run([*build, str(tmp_path / "program.c"), "-o", str(program)], check=True, timeout=120)
    shim = str(SHIM / "libfalcon_shim.so")
    environment = {**os.environ, "LD_PRELOAD": shim, "FALCON_RING_DIR": str(tmp_path)}
    child = f'"{LOADER}" "{program}"; echo $?'  # of a glibc shell, which is preloaded itself
    done = subprocess.run(["sh", "-c", child], env=environment, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"{shim}\n7\n", "")
    assert not list(tmp_path.glob("*.ring"))
