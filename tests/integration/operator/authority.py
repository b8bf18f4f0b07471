"""A certificate authority made by the operator's own functions; what ``EtcdServer`` needs of a pki."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

from falcon_operator.bus import certs, tls_files
from tests.integration.pki import Issued


class Authority:
    """Under ``folder``, which it makes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = dt.datetime.now(dt.UTC)
        self.pair = certs.new_authority(self.now)
        folder.mkdir()
        self.ca = folder / "ca.crt"
        self.ca.write_bytes(self.pair.cert)

    def server(self, host: str) -> Issued:
        return self._files("server", certs.issue_server(self.pair, [host], self.now))

    def client(self, user: str) -> Issued:
        return self._files(user, certs.issue_client(self.pair, user, self.now))

    def _files(self, name: str, pair: certs.Pair) -> Issued:
        tls = tls_files.write(self._folder(name), self.pair.cert, pair)
        assert tls.cert is not None
        assert tls.key is not None
        return Issued(tls.cert, tls.key)

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder
