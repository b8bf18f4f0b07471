"""Prepare etcd's .proto files to be compiled into ``falcon_etcd._proto`` (development, ``make proto``).

etcd annotates its files for gogoproto, grpc-gateway and its version checker. Those annotations mean nothing on the
wire, and their extensions would take numbers in the process-wide descriptor pool, so they are removed before compiling.
For the same reason the packages move under ``falcon.``: two files that define ``etcdserverpb.PutRequest`` cannot be
loaded into one process, and another etcd client may be loaded next to this one. Neither name crosses the wire.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = "falcon_etcd/_proto"
SOURCES = ("mvccpb/kv.proto", "authpb/auth.proto", "etcdserverpb/rpc.proto")

_COMMENT = re.compile(r"//[^\n]*")
_BLOCK_OPTION = re.compile(r"\boption\s*\([^)]*\)\s*=\s*\{")
_LINE_OPTION = re.compile(r"\boption\s+[^;{]*;")
_FIELD_OPTIONS = re.compile(r"\s*\[\s*\([^\]]*\]")
_IMPORT = re.compile(r'import\s+"([^"]+)";')


def strip(proto: str) -> str:
    """Remove comments, options and foreign imports; move the package under ``falcon.``."""
    text = _COMMENT.sub("", proto)
    while match := _BLOCK_OPTION.search(text):
        text = text[: match.start()] + text[_end_of_block(text, match.end()) :]
    text = _LINE_OPTION.sub("", text)
    text = _FIELD_OPTIONS.sub("", text)
    text = _IMPORT.sub(_our_import, text)
    return re.sub(r"\bpackage\s+(\w+);", r"package falcon.\1;", text)


def _end_of_block(text: str, start: int) -> int:
    """Return the index after the brace (and semicolon) that closes the block whose content begins at ``start``."""
    depth = 1
    for index in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return index + 2 if text[index + 1 : index + 2] == ";" else index + 1
    raise ValueError("an option's block is not closed: the .proto file is damaged; fetch the Go module again")


def _our_import(match: re.Match[str]) -> str:
    path = match.group(1).removeprefix("etcd/api/")
    return f'import "{PACKAGE}/{Path(path).name}";' if path in SOURCES else ""


def main(api_module: Path, stage: Path) -> None:
    """Write the stripped sources of the Go module go.etcd.io/etcd/api/v3 under ``stage``."""
    target = stage / PACKAGE
    target.mkdir(parents=True)
    for source in SOURCES:
        (target / Path(source).name).write_text(strip((api_module / source).read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
