"""Check what the shim sees of real releases of NCCL: ``python -m dev.nccl_coverage WHEEL…`` (``make nccl-releases``).

Of each wheel's folder, every exported function that takes a stream, or makes a communicator or a window, has to be
hooked, or ignored with a reason; so has one that no header declares, since its parameters are unknown. The table is
``shim/src/shim/nccl/functions.def``; hooks around communicators are in the sources. Where a hook stands in for a
function, its arguments must have the places that the header gives them. Prints the table; status 1 if anything is
missing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

SOURCES = Path(__file__).parents[1] / "shim" / "src" / "shim" / "nccl"
_CALL = re.compile(r"FALCON_CALL\(\s*(\w+),\s*(\w+),\s*\(([^)]*)\)", re.DOTALL)
_IGNORED = re.compile(r"FALCON_IGNORED\((\w+),\s*\"([^\"]+)\"\)")
_HOOK = re.compile(r"FALCON_HOOK (nccl\w+)\(")
_PROTOTYPE = re.compile(r"\b(nccl[A-Z]\w*)\s*\(([^()]*)\)\s*(?:;|\{)")
_COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
# The names that NCCL's headers give to what a hook reads, and the hook's own.
_MEANT = {
    "count": "count",
    "sendcount": "count",
    "recvcount": "count",
    "datatype": "type",
    "root": "root",
    "peer": "peer",
    "comm": "comm",
    "stream": "stream",
}


class Table(msgspec.Struct, frozen=True):
    """What the shim does with functions of NCCL, by name."""

    calls: dict[str, list[str]]  # the names of a hook's parameters
    others: frozenset[str]  # hooked as well: groups and the life of communicators
    ignored: dict[str, str]  # the reason

    def of(self, name: str) -> str:
        """Return what is done with a function; empty where nothing is said of it."""
        if name in self.calls or name in self.others:
            return "hooked"
        return f"ignored: {self.ignored[name]}" if name in self.ignored else ""


def shims_table(sources: Path = SOURCES) -> Table:
    """Read the table from the shim's sources."""
    text = (sources / "functions.def").read_text()
    hooks = "".join(path.read_text() for path in sorted(sources.glob("*.cc")))
    return Table(
        calls={name: names_of(parameters) for name, _, parameters in _CALL.findall(_COMMENT.sub("", text))},
        others=frozenset(_HOOK.findall(hooks)),
        ignored=dict(_IGNORED.findall(text)),
    )


def names_of(parameters: str) -> list[str]:
    """Return the names of a C function's parameters."""
    return [match[-1] for each in parameters.split(",") if (match := re.findall(r"\w+", each))]


def prototypes(headers: Iterable[str]) -> dict[str, str]:
    """Return the parameters of each function that the headers declare, by name."""
    found: dict[str, str] = {}
    for text in headers:
        for name, parameters in _PROTOTYPE.findall(_COMMENT.sub("", text)):
            found.setdefault(name, " ".join(parameters.split()))
    return found


def must_be_seen(parameters: str | None) -> bool:
    """Check whether a function puts work on a stream or makes what communicates, or may: None is not declared."""
    if parameters is None or "cudaStream_t" in parameters:
        return True
    return re.search(r"nccl(Comm|DevComm|Window)_t\s*(const\s*)?\*", parameters) is not None


def faults(exported: Iterable[str], declared: Mapping[str, str], table: Table) -> list[str]:
    """Return what is missing or wrong, a line each."""
    found = []
    for name in sorted(exported):
        parameters = declared.get(name)
        if must_be_seen(parameters) and not table.of(name):
            found.append(f"{name}({parameters if parameters is not None else '?'}): neither hooked nor ignored")
        if name in table.calls and parameters is not None and not _agree(table.calls[name], parameters):
            found.append(f"{name}: the hook takes ({', '.join(table.calls[name])}), the release ({parameters})")
    return found


def _agree(hooks: list[str], parameters: str) -> bool:
    """Check whether what a hook reads has the places that the header gives it."""
    wanted = [_MEANT.get(given, "") for given in names_of(parameters)]
    return [given if given in _MEANT.values() else "" for given in hooks] == wanted


def exported_by(library: Path) -> list[str]:
    """Return the functions of NCCL's interface that a library exports, without their twins."""
    listed = subprocess.run(
        ["nm", "-D", "--defined-only", str(library)], check=True, capture_output=True, text=True
    ).stdout
    return sorted(set(re.findall(r"^[0-9a-f]+ [TW] (nccl[A-Z]\w*)$", listed, re.MULTILINE)))


def release(folder: Path) -> tuple[list[str], dict[str, str]]:
    """Return what a wheel's library exports, and what its headers declare."""
    nccl = folder / "nvidia" / "nccl"
    headers = [path.read_text(errors="replace") for path in sorted((nccl / "include").rglob("*.h"))]
    return exported_by(nccl / "lib" / "libnccl.so.2"), prototypes(headers)


def main() -> int:
    table = shims_table()
    missing = []
    seen: dict[str, list[str]] = {}
    for folder in map(Path, sys.argv[1:]):
        exported, declared = release(folder)
        missing += [f"{folder.name}: {fault}" for fault in faults(exported, declared, table)]
        for name in exported:
            if must_be_seen(declared.get(name)):
                seen.setdefault(name, []).append(folder.name.split("==")[-1])
    for name, releases in sorted(seen.items()):
        print(f"{name:28} {table.of(name) or 'MISSING':56} since {releases[0]}")
    for line in missing:
        print(line, file=sys.stderr)
    if missing:
        print(f"add them to {SOURCES / 'functions.def'}, as calls or with the reason", file=sys.stderr)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
