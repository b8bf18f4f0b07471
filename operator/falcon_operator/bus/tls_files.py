"""Write the operator's own certificate to files, which clients read again after a renewal."""

from __future__ import annotations

import os
from pathlib import Path

from falcon_etcd import Tls
from falcon_operator.bus.certs import Pair


def write(folder: Path, authority: bytes, own: Pair) -> Tls:
    """Write or replace the files in a folder, which may be new.

    A reader sees each file whole. Only the operator's own user may read the key.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    paths = {"ca.crt": authority, "tls.crt": own.cert, "tls.key": own.key}
    for name, content in paths.items():
        target = folder / name
        if target.exists() and target.read_bytes() == content:
            continue
        fresh = folder / f".{name}"
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)
        fresh.replace(target)
    return Tls(ca=folder / "ca.crt", cert=folder / "tls.crt", key=folder / "tls.key")
