"""Package the kubectl plugin as Krew installs it: one archive for Linux and macOS, and the manifest that names it.

    python -m dev.plugin FOLDER [--uri URI-OF-THE-ARCHIVE]

The archive holds ``kubectl-falcon``, a zip file that the machine's own Python 3.11 or newer runs, and the licence. The
same sources give the same bytes. Krew reads the manifest, and fetches the archive from ``--uri``:

    kubectl krew install --manifest=falcon.yaml [--archive=kubectl-falcon.tar.gz]
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import tarfile
import zipfile
from pathlib import Path
from typing import Final

import yaml

from falcon_core import __version__

ROOT: Final = Path(__file__).resolve().parents[1]
ARCHIVE: Final = "kubectl-falcon.tar.gz"
MANIFEST: Final = "falcon.yaml"
PROGRAM: Final = "kubectl-falcon"
SHARED: Final = (  # of falcon_core
    "__init__.py",
    "command_line.py",
    "job_kind.py",
    "secret_names.py",
    "secrets.py",
    "text.py",
)
SHEBANG: Final = b"#!/usr/bin/env python3\n"
EPOCH: Final = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip file knows
# Any Python can read it, to say that it is too old.
MAIN: Final = """\
import sys

if sys.version_info < (3, 11):
    sys.exit("kubectl-falcon: it needs Python 3.11 or newer as python3; this is " + sys.version.split()[0])
from kubectl_falcon.__main__ import main

sys.exit(main())
"""


def program() -> bytes:
    """Return the program: Python runs the zip file that follows its first line."""
    sources = {str(path.relative_to(ROOT / "cli")): path for path in (ROOT / "cli/kubectl_falcon").rglob("*.py")}
    sources |= {f"falcon_core/{name}": ROOT / "core/falcon_core" / name for name in SHARED}
    contents = {"__main__.py": MAIN.encode(), **{name: path.read_bytes() for name, path in sources.items()}}
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in sorted(contents.items()):
            archive.writestr(zipfile.ZipInfo(name, EPOCH), data, zipfile.ZIP_DEFLATED)
    return SHEBANG + packed.getvalue()


def archive() -> bytes:
    """Return the archive, packed."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data, mode in (
            (PROGRAM, program(), 0o755),
            ("LICENSE", (ROOT / "LICENSE").read_bytes(), 0o644),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), mode
            tar.addfile(entry, io.BytesIO(data))
    return gzip.compress(packed.getvalue(), mtime=0)


def manifest(packed: bytes, uri: str) -> str:
    """Return Krew's manifest of an archive that lies at ``uri``."""
    files = [{"from": name, "to": "."} for name in (PROGRAM, "LICENSE")]
    return yaml.safe_dump(
        {
            "apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
            "kind": "Plugin",
            "metadata": {"name": "falcon"},
            "spec": {
                "version": f"v{__version__}",
                "shortDescription": "Explain and check Falcon's TrainingJobs",
                "description": (
                    "Read the diagnosis of a distributed training job on a page, draw its history, list all jobs,\n"
                    "measure its machines and links now, suspend and resume it, and pack a bug report.\n"
                ),
                "caveats": "It needs Python 3.11 or newer as python3, and Falcon in the cluster.\n",
                "platforms": [
                    {
                        "selector": {
                            "matchExpressions": [{"key": "os", "operator": "In", "values": ["linux", "darwin"]}]
                        },
                        "uri": uri,
                        "sha256": hashlib.sha256(packed).hexdigest(),
                        "bin": PROGRAM,
                        "files": files,
                    }
                ],
            },
        },
        sort_keys=False,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where both files are written")
    parser.add_argument(
        "--uri",
        default=f"https://registry.example.org/falcon/v{__version__}/{ARCHIVE}",
        help="from where Krew fetches the archive (https)",
    )
    asked = parser.parse_args()
    packed = archive()
    asked.folder.mkdir(parents=True, exist_ok=True)
    (asked.folder / ARCHIVE).write_bytes(packed)
    (asked.folder / MANIFEST).write_text(manifest(packed, asked.uri))
    print(f"{asked.folder / ARCHIVE}: {len(packed) / 1024:.0f} KiB; {asked.folder / MANIFEST}")


if __name__ == "__main__":
    main()
