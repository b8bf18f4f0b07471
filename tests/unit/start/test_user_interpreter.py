"""What of Falcon runs in the program's interpreter swallows nothing of the program's, and stands in its way nowhere.

Real interpreters, of all versions that this machine has, and real signals.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_core.wire.launcher.notes import NOTES_SUFFIX, unpack
from tests.unit.start.pythons import every_python, knows_forks, outer_pythons, run

# A handler that raises what programs raise there, and a function of libc's that sends the signal: unlike ``os.kill`` it
# runs no handlers itself.
RAISING = """
import ctypes, gc, os, signal, sys
from functools import partial

class Gone(BaseException):
    pass

KINDS = [SystemExit, KeyboardInterrupt, TimeoutError, Gone]
done = arrived = 0

def handler(number, frame):
    raise KINDS[done % len(KINDS)]("now")

signal.signal(signal.SIGALRM, handler)
send = partial(ctypes.PyDLL(None)["raise"], int(signal.SIGALRM))
"""
# The signal comes inside each collection: before Falcon's own callback, at its start and at its end.
COLLECTING = (
    RAISING
    + """
sends = iter(send, None)
gc.callbacks.insert(0, partial(getattr, type("Sends", (), {PHASE: property(partial(next, sends))})()))
gc.disable()
for done in range(200):
    try:
        gc.collect()
    except BaseException as error:
        assert type(error) is KINDS[done % len(KINDS)]
        arrived += 1
gc.callbacks.pop(0)
print(arrived)
"""
)


@every_python
@pytest.mark.parametrize("phase", ["start", "stop"])
def test_what_a_handler_raises_in_a_collection_reaches_the_program(python: str, phase: str, tmp_path: Path) -> None:
    done = run(python, f"PHASE = {phase!r}\n" + COLLECTING, tmp_path)
    assert (done.stdout, done.stderr) == ("200\n", "")


@every_python
def test_no_python_runs_in_a_collection(python: str, tmp_path: Path) -> None:
    code = (
        "import gc, sys\nseen = []\n"
        "sys.setprofile(lambda frame, event, arg: seen.append((event, frame.f_code.co_filename)))\n"
        "gc.collect()\nsys.setprofile(None)\n"
        "print([file for event, file in seen if event == 'call'])\n"
        "print([callback for callback in gc.callbacks if type(callback).__name__ == 'function'])\n"
    )
    assert run(python, code, tmp_path).stdout == "[]\n[]\n"


@every_python
def test_an_alarm_during_a_long_collection_ends_the_program(python: str, tmp_path: Path) -> None:
    code = (
        "import gc, signal, sys\nkept = []\nfor _ in range(300_000):\n    kept.append([kept])\n"
        "signal.signal(signal.SIGALRM, lambda *_: sys.exit(7))\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.001)\n"
        "for _ in range(1000):\n    gc.collect()\n"
    )
    done = run(python, code, tmp_path)
    assert (done.returncode, done.stderr) == (7, "")


# Importing modules that are not there, again and again, while signals come at any moment of it.
IMPORTING = """
import signal, sys

class Late(OSError):
    pass

def handler(number, frame):
    global raised
    raised += 1
    raise Late("now")

raised = caught = 0
signal.signal(signal.SIGALRM, handler)
try:
    import absent_0
except ImportError:
    pass
finder = sys.meta_path[0]

def search(before):
    signal.setitimer(signal.ITIMER_REAL, 0.0002)
    while raised == before:
        finder.find_spec("absent_%d" % raised)

while raised < 200:
    try:
        search(raised)
    except Late:
        caught += 1
print(raised, caught)
"""


@every_python
def test_what_a_handler_raises_in_an_import_reaches_the_program(python: str, tmp_path: Path) -> None:
    done = run(python, IMPORTING, tmp_path, FALCON_IMPORTS=str(tmp_path / "imports"))
    assert (done.stdout, done.stderr) == ("200 200\n", "")


HOOKED = """
import os, signal, sys
{handler}
signal.signal(signal.SIGALRM, handler)

class Error(Exception):
    pass

def tracer(frame, event, arg):
    # The signal comes at the first line that Falcon's hook runs.
    if frame.f_code.co_name == "hook" and event == "call":
        sys.settrace(None)
        signal.raise_signal(signal.SIGALRM) if hasattr(signal, "raise_signal") else os.kill(os.getpid(), signal.SIGALRM)

def printing(*told):
    print("printed", told[0].__name__, flush=True)

sys.settrace(tracer)
{raises}
"""


@every_python
def test_an_exception_of_a_handler_in_the_hook_is_not_swallowed(python: str, tmp_path: Path) -> None:
    code = HOOKED.format(handler="def handler(*_):\n    raise TimeoutError('late')", raises="raise Error('first')")
    done = run(python, code, tmp_path)
    assert done.returncode == 1
    assert "TimeoutError: late" in done.stderr
    assert "Error: first" in done.stderr


@outer_pythons
def test_a_hook_of_the_programs_is_called_once_with_what_it_expects(python: str, tmp_path: Path) -> None:
    code = (
        "import sys\nbefore = sys.excepthook\n"
        "def own(*told):\n    print([type(each).__name__ for each in told], flush=True)\n    before(*told)\n"
        "sys.excepthook = own\ndef step():\n    raise ValueError('bad shape')\nstep()\n"
    )
    done, plain = run(python, code, tmp_path), run(python, code, tmp_path, falcon=False)
    assert (done.returncode, done.stdout) == (1, "['type', 'ValueError', 'traceback']\n")
    assert (done.stdout, done.stderr) == (plain.stdout, plain.stderr)


@outer_pythons
@pytest.mark.parametrize(
    "code",
    [
        "raise SystemExit(3)",
        "raise SystemExit('words')",
        "def f():\n    return f()\nf()",
        "import threading\nthread = threading.Thread(target=lambda: 1 / 0)\nthread.start()\nthread.join()",
        "class Bad:\n    def __del__(self):\n        1 / 0\nBad()\nimport gc; gc.collect()",
        "import os, sys\nif os.fork() == 0:\n    sys.exit(5)\nprint(os.wait()[1])",
        "import atexit\natexit.register(lambda: print('last'))\nraise KeyError('a')",
        "import gc\nprint(len(gc.get_objects()) > 0, gc.isenabled(), gc.get_threshold())",
        "import multiprocessing as m\nif __name__ == '__main__':\n    p = m.get_context('fork').Process(target=print,"
        " args=('child',))\n    p.start(); p.join(); print(p.exitcode)",
        "import os, warnings\nprint(warnings.filters[0][0], os.path.basename(os.getcwd()))",
        "import subprocess, sys\nprint(subprocess.call([sys.executable, '-c', 'raise SystemExit(4)']))",
    ],
    ids=["status", "words", "depth", "thread", "finaliser", "fork", "exit", "collector", "pool", "warnings", "child"],
)
def test_a_program_ends_and_prints_as_without_falcon(python: str, code: str, tmp_path: Path) -> None:
    options = ("-W", "error")
    done, plain = run(python, code, tmp_path, *options), run(python, code, tmp_path, *options, falcon=False)
    stderr = [text.replace("0x", "").split(" at ")[0] for text in (done.stderr, plain.stderr)]
    assert (done.returncode, done.stdout, stderr[0]) == (plain.returncode, plain.stdout, stderr[1])


@every_python
def test_closed_descriptors_leave_the_programs_files_alone(python: str, tmp_path: Path) -> None:
    """A daemon closes all descriptors; its next files get their numbers."""
    code = (
        "import gc, os, sys\nos.closerange(3, 100)\n"
        "files = [open('own-%d' % number, 'wb') for number in range(6)]\n"
        "kept = []\nfor _ in range(100_000):\n    kept.append([kept])\n"
        "gc.collect()\nos.environ['NEW'] = '1'\n"
        "try:\n    import absent_package\nexcept ImportError:\n    pass\n"
        "try:\n    import another\nexcept ImportError:\n    pass\n"
        "import json\nraise ValueError('end')\n"
    )
    done = run(python, code, tmp_path, FALCON_IMPORTS=str(tmp_path / "imports"))
    assert "ValueError: end" in done.stderr
    assert [(tmp_path / f"own-{number}").read_bytes() for number in range(6)] == [b""] * 6
    if knows_forks(python):
        (path,) = tmp_path.glob("*" + NOTES_SUFFIX)
        noted = unpack(path.read_bytes())
        assert noted is not None
        assert noted.collected_seconds > 0
        assert (noted.uncaught, noted.ended) == (True, True)
    assert b"e NEW " in (tmp_path / "imports").read_bytes()


@outer_pythons
@pytest.mark.parametrize("module", ["mmap", "zlib"])
def test_a_module_of_the_programs_own_is_found_by_its_name(python: str, module: str, tmp_path: Path) -> None:
    (tmp_path / f"{module}.py").write_text("OWN = True\n")
    code = (
        f"import sys\nprint({module!r} in sys.builtin_module_names)\nimport {module}\nprint(hasattr({module}, 'OWN'))"
    )
    found = [
        run(python, code, tmp_path, falcon=falcon, FALCON_IMPORTS=str(tmp_path / "imports") if falcon else "").stdout
        for falcon in (True, False)
    ]
    assert found[0] == found[1]


@outer_pythons
def test_a_lazy_module_stays_unloaded(python: str, tmp_path: Path) -> None:
    code = """
import importlib.util, sys
spec = importlib.util.find_spec("late")
loader = importlib.util.LazyLoader(spec.loader)
spec.loader = loader
module = importlib.util.module_from_spec(spec)
sys.modules["late"] = module
loader.exec_module(module)
for name in ("absent_a", "absent_b"):
    try:
        __import__(name)
    except ImportError:
        pass
print("end")
"""
    (tmp_path / "late.py").write_text("print('loaded')\n")
    done = run(python, code, tmp_path, FALCON_IMPORTS=str(tmp_path / "imports"))
    assert (done.stdout, done.stderr) == ("end\n", "")


@outer_pythons
def test_a_current_folder_that_is_gone_is_no_error(python: str, tmp_path: Path) -> None:
    """Some Pythons do not start there by themselves."""
    code = (
        "import os, subprocess, sys\nos.mkdir('gone')\nos.chdir('gone')\nos.rmdir(os.getcwd())\n"
        "os.environ['PYTHONPATH'] = os.environ.get('PYTHONPATH', '') + ':relative'\n"
        "done = subprocess.run([sys.executable, '-c', 'print(1)'], stdout=subprocess.PIPE, stderr=subprocess.PIPE)\n"
        "print(done.returncode, done.stdout, b'sitecustomize' in done.stderr)"
    )
    assert run(python, code, tmp_path).stdout == run(python, code, tmp_path, falcon=False).stdout


@outer_pythons
def test_a_rank_that_still_ends_survives_the_next_ranks_record(python: str, tmp_path: Path) -> None:
    """Both map the same file: what the old one writes to may not become shorter."""
    code = """
import os, subprocess, sys
def look(name):
    try:
        __import__(name)
    except ImportError:
        pass
look("first")
subprocess.check_call([sys.executable, "-c", "pass"], env=dict(os.environ, FALCON_IMPORTS=sys.argv[1]))
os.environ["NEW"] = "1"
look("second")
print("alive")
"""
    record = tmp_path / "imports"
    done = run(python, f"import sys\nsys.argv = ['', {str(record)!r}]\n{code}", tmp_path, FALCON_IMPORTS=str(record))
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")
    assert b"e NEW" not in record.read_bytes(), "the record is the next rank's"


@every_python
def test_an_interpreter_inside_the_programs_changes_no_note(python: str, tmp_path: Path) -> None:
    """Each begins as a program's does, in the same process, and ends before it."""
    code = """
import os, struct
try:
    import _interpreters as interpreters
except ImportError:
    try:
        import _xxsubinterpreters as interpreters
    except ImportError:
        interpreters = None
if interpreters is not None:
    inner = interpreters.create()
    interpreters.destroy(inner)
    with open(os.path.join(os.environ["FALCON_STACKS"], "%d.notes" % os.getpid()), "rb") as file:
        print(struct.unpack("=3d", file.read())[1:])
else:
    print((0.0, 0.0))
"""
    assert run(python, code, tmp_path).stdout == "(0.0, 0.0)\n"
