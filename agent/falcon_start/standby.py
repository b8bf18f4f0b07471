"""Hold this interpreter before ``__main__``, or in it, with its packages imported, until the launcher needs a rank.

The launcher (shim/src/launch/standby/standbys.h) starts it with the user's own command and one end of a socket::

    held:      "imported <note>\\n" if it goes on to its program, and the shim does the rest (sockets/hold.h)
    held:      "ready <note>\\n", or "failed <why>\\n" and it ends
    launcher:  "KEY=value\\0" or, for a variable that is gone, "KEY\\0" …, then "."
    held:      "o"    it has the rank's environment
    launcher:  "g"    it is the rank; the end of the stream instead: it ends

Only modules are imported that ``imports`` has seen a rank import from an installed package, in that order, as long as
the environment is what it was then. No line of the program runs here.
"""

import os
import sys

from falcon_start.imports import MOST_BYTES, code, roots, text_of

_NOTE_CHARACTERS = 300


class _Refused(BaseException):
    """A standby cannot be what a fresh interpreter would become; no ``except`` of a package's may swallow it."""


class _Guard:
    """Refuses modules of the program: here, without the program's folder, another of that name would be found."""

    def __init__(self, own):  # type: (frozenset[str]) -> None
        self._own = own

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name.partition(".")[0] in self._own:
            raise _Refused(f"installed packages import {name}, a module of the program's own")


def hold(file, path, port=""):  # type: (int, str, str) -> None
    """Import what the file ``path`` names, and return as the rank that the launcher wants.

    file: this process's end of the socket. ``port``: where the next ranks meet; then this returns at once, and the shim
    holds the program there. No return if no rank is wanted, or if an import fails.
    """
    # Programs that the user's code starts must not hold the launcher's socket open.
    os.set_inheritable(file, False)
    try:
        note = _import_all(_lines(path))
        if port:
            _refuse_unheld()
            os.environ["FALCON_HOLD"] = f"{os.getpid()} {file} {port} {os.fstat(file).st_ino}"
            if not _show_environment():
                raise _Refused("the shim of this process does not take the hold")
        else:
            _refuse_gpu()
        _send(file, ("imported " if port else "ready ") + note)
    except BaseException as error:
        _send(file, "failed " + (str(error) if isinstance(error, _Refused) else repr(error)))
        os._exit(1)
    if port:
        return
    # Here the process waits, with everything imported, until the launcher needs a rank.
    _become(_release(file))
    _show_environment()
    os.write(file, b"o")
    if os.read(file, 1) != b"g":
        os._exit(0)
    os.close(file)


def _lines(path):  # type: (str) -> list[list[str]]
    text = os.fsdecode(text_of(path))
    return [line.split(" ") for line in text.split("\n") if line.count(" ")]


def _import_all(lines):  # type: (list[list[str]]) -> str
    """Return why not all was imported; else nothing."""
    places = roots()
    own = frozenset(words[1] for words in lines if words[0] in "om") | _local_packages(places)
    guard = _Guard(own)
    expected = {}  # type: dict[str, str]
    sys.meta_path.insert(0, guard)
    try:
        for words in lines:
            if words[0] == "e":
                expected[" ".join(words[1:-1])] = words[-1]
            elif words[0] == "i" and words[1] not in sys.modules and words[1].partition(".")[0] not in own:
                # Libraries read variables when they are imported: with other values the imported module would be
                # another one.
                others = [key for key, value in expected.items() if code(_variable(key)) != value]
                if others:
                    return f"{words[1]} was imported after {others[0]} was set: set it in the pod's template"
                _import(words[1])
    finally:
        sys.meta_path.remove(guard)
    return ""


def _variable(key):  # type: (str) -> bytes | None
    return os.environb.get(os.fsencode(key))


def _import(name):  # type: (str) -> None
    try:
        __import__(name)
    except _Refused:
        raise
    except BaseException as error:
        raise _Refused(f"the import of {name} ended with {error!r}") from None


def _local_packages(places):  # type: (tuple[str, ...]) -> frozenset[str]
    """Return the modules that were installed from a local folder (``pip install .``): the user's own."""
    found = set()  # type: set[str]
    for place in places:
        for name in os.listdir(place) if os.path.isdir(place) else []:
            if name.endswith(".dist-info"):
                found.update(_local_modules(os.path.join(place, name)))
    return frozenset(found)


def _local_modules(about):  # type: (str) -> list[str]
    """Return the modules of one installed package, from its metadata; none where it came from anywhere else."""
    if '"dir_info"' not in _text(os.path.join(about, "direct_url.json")):
        return []
    files = [line.partition(",")[0] for line in _text(os.path.join(about, "RECORD")).splitlines()]
    return [file.partition("/")[0].partition(".")[0] for file in files]


def _text(path):  # type: (str) -> str
    try:
        with open(path, "rb") as file:
            return os.fsdecode(file.read(MOST_BYTES))
    except OSError:
        return ""


def _refuse_gpu():  # type: () -> None
    """Refuse to wait with a GPU open: its memory would be missing to the rank that trains."""
    for number in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + number)
        except OSError:  # the folder's own
            continue
        if target.startswith("/dev/nvidia") and target[len("/dev/nvidia") :].isdigit():
            raise _Refused(f"the imports open {target}")


def _refuse_unheld():  # type: () -> None
    """Refuse to run the program where the shim is not in this process: nothing would keep it from training."""
    shim = os.environ.get("LD_PRELOAD", "").rpartition(":")[2]  # falcon-launch puts it last
    with open("/proc/self/maps") as maps:
        if not shim or os.path.realpath(shim) not in maps.read():
            raise _Refused("the shim is not loaded: nothing would hold the program")


def _show_environment():  # type: () -> bool
    """Let the shim copy the environment, which it reads when it is loaded and never again; False where it cannot."""
    try:
        import ctypes

        ctypes.CDLL(None).falcon_read_variables()
    except (AttributeError, ImportError, OSError):
        return False
    return True


def _send(file, line):  # type: (int, str) -> None
    os.write(file, os.fsencode(line.replace("\n", " ")[:_NOTE_CHARACTERS] + "\n"))


def _release(file):  # type: (int) -> list[bytes]
    """Wait for the rank's environment. No return where the launcher is gone."""
    items = [b""]
    while items[-1] != b".":
        part = os.read(file, 1 << 16)
        if not part:
            os._exit(0)
        items = b"\0".join([*items[:-1], items[-1] + part]).split(b"\0")
    return items[:-1]


def _become(items):  # type: (list[bytes]) -> None
    for item in items:
        key, given, value = item.partition(b"=")
        if given:
            os.environb[key] = value
        else:
            os.environb.pop(key, None)
