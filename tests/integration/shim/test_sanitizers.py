"""Programs with AddressSanitizer start under the shim, and find what they find without it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.shim.conftest import Start

# It also calls what the shim replaces: the runtime has functions of its own in front of many of the C library's.
SOURCE = """
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
int main(int count, char** words) {
  struct sockaddr_in address;
  memset(&address, 0, sizeof(address));
  address.sin_family = AF_INET;
  int file = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(file, (struct sockaddr*)&address, sizeof(address)) != 0) return 3;
  char* bytes = malloc(16);
  bytes[0] = 'x';
  free(bytes);
  if (count > 1) printf("%c", bytes[0]);  /* after it was freed */
  puts("ended");
  fflush(stdout);
  return 0;
}
"""
pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc here")


def _compiled(folder: Path, *options: str) -> str:
    source, program = folder / "program.c", folder / "program"
    source.write_text(SOURCE)
    subprocess.run(["gcc", "-w", "-g", *options, "-o", program, source], check=True, timeout=60)
    return str(program)


# gcc links the runtime as a library, clang into the program.
@pytest.mark.parametrize("options", [("-fsanitize=address",), ("-fsanitize=address", "-static-libasan")])
@pytest.mark.parametrize("shell", [False, True])
def test_a_program_with_address_sanitizer_runs(
    start: Start, tmp_path: Path, options: tuple[str, ...], shell: bool
) -> None:
    program = _compiled(tmp_path, *options)
    good, bad = ([program, *words] for words in ([], ["bad"]))
    for command, code in ((good, 0), (bad, 1)):
        words = ["sh", "-c", " ".join(command) + "; exit $?"] if shell else command
        launcher = start(*words)
        launcher.run()
        ended = launcher.wait(state="Exited").ranks[0]
        out, err = launcher.finish()
        assert ended.exit_code == code, err
        assert (out == "ended\n") == (code == 0)
        assert ("heap-use-after-free" in err) == (code == 1)


def test_a_runtime_that_the_container_preloads_comes_first(start: Start, tmp_path: Path) -> None:
    library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True).stdout
    launcher = start(_compiled(tmp_path), environment={"LD_PRELOAD": library.strip(), "ASAN_OPTIONS": "exitcode=7"})
    launcher.run()
    assert launcher.wait(state="Exited").ranks[0].exit_code == 0
    out, _ = launcher.finish()
    assert out == "ended\n"


def test_what_the_user_says_of_the_runtime_counts(start: Start, tmp_path: Path) -> None:
    program = _compiled(tmp_path, "-fsanitize=address")
    launcher = start(program, "bad", environment={"ASAN_OPTIONS": "exitcode=7"})
    launcher.run()
    assert launcher.wait(state="Exited").ranks[0].exit_code == 7
    launcher.finish()
