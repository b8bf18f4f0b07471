"""Decide when a connection is made again because the certificates changed that it was made with.

The gateway closes connections whose client it trusts no more. This is the client's side of it: an authority that has
left the file may have been known to others, and so the gateway that it has vouched for may be none.
"""

from __future__ import annotations

import random
import re
from typing import Final, NamedTuple

# After the own certificate was replaced. Kubelets write a Secret into all pods within about 90 s, and by then every
# gateway has read the authority of the new certificate. Twice as long at most, since a job has many agents.
RENEWAL_SECONDS: Final = 120.0
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class Pems(NamedTuple):
    """What stood in the files: the authorities that are trusted, the own certificate, and its key."""

    ca: bytes
    cert: bytes
    key: bytes


class Renewal:
    """The renewal of one connection, which was made with ``used``."""

    def __init__(self, used: Pems) -> None:
        self._used = used
        self._authorities = authorities(used.ca)
        self._wait_seconds = RENEWAL_SECONDS * random.uniform(1, 2)
        self._replaced_at: float | None = None

    def due(self, present: Pems, now: float) -> str:
        """Return why the connection is to be made again now; "" where it is not. ``now``: monotonic seconds."""
        trusted = authorities(present.ca)
        # A file without any is being replaced.
        if trusted and not self._authorities <= trusted:
            return "an authority is trusted no more that was trusted when the connection was made"
        if present.cert == self._used.cert:
            self._replaced_at = None
            return ""
        if self._replaced_at is None:
            self._replaced_at = now
        waited = now - self._replaced_at >= self._wait_seconds
        return "the certificate was replaced with which the connection was made" if waited else ""


def authorities(bundle: bytes) -> frozenset[bytes]:
    """Return each certificate in PEM, without the white space in it."""
    return frozenset(b"".join(found.split()) for found in _CERTIFICATE.findall(bundle))
