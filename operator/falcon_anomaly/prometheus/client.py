"""Ask Prometheus one question by its HTTP API, with bounds on its time and on the answer's size.

Each question has a connection of its own, and reads the token and the authority from their files: what is renewed
counts at once. Redirects are refused, so that the token goes to the configured address alone, and proxies of the
environment are not used.
"""

from __future__ import annotations

import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
import numpy as np
import numpy.typing as npt

from falcon_anomaly.queries.answers import MOST_BYTES, MOST_SERIES, QueryError, TooLargeError, refusal

ANSWER_SECONDS: Final = 8.0  # for a question, with its connection
QUERY_SECONDS: Final = 5.0  # for which Prometheus may evaluate it
TOKEN, AUTHORITY = "token", "ca.crt"  # names of the files, as in the Secret
_MOST_TOKEN: Final = 16 << 10  # bytes


async def ask(url: str, secrets: Path | None, query: str, ends: npt.NDArray[np.float64]) -> bytes:
    """Return the answer to a query about the times ``ends`` [window], s since 1970, evenly spaced.

    Raises QueryError for an answer that is none, and what aiohttp, ssl and reading the files raise.
    """
    headers = {"Accept-Encoding": "identity", **_authorization(url, secrets)}
    step = float(ends[1] - ends[0]) if len(ends) > 1 else 10.0
    form = {
        "query": query,
        "start": f"{ends[0]:.3f}",
        "end": f"{ends[-1]:.3f}",
        "step": f"{step:g}",
        "timeout": f"{QUERY_SECONDS:g}s",
        "limit": str(MOST_SERIES + 1),
    }
    async with (
        # What is compressed all the same is not expanded: a few bytes must not fill the memory.
        aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS), auto_decompress=False) as session,
        session.post(
            f"{url.rstrip('/')}/api/v1/query_range",
            data=form,
            headers=headers,
            ssl=_context(secrets) if url.startswith("https:") else True,
            allow_redirects=False,
        ) as response,
    ):
        body = bytearray()
        async for part in response.content.iter_any():
            body += part
            if len(body) > MOST_BYTES:
                raise TooLargeError(f"more than {MOST_BYTES} bytes: aggregate or filter in the query")
        if response.status != HTTPStatus.OK:
            raise QueryError(refusal(response.status, bytes(body)))
        return bytes(body)


def _context(secrets: Path | None) -> ssl.SSLContext:
    authority = None if secrets is None else secrets / AUTHORITY
    return ssl.create_default_context(cafile=str(authority) if authority is not None and authority.exists() else None)


def _authorization(url: str, secrets: Path | None) -> dict[str, str]:
    file = None if secrets is None else secrets / TOKEN
    if file is None or not file.exists():
        return {}
    if not url.startswith("https:"):
        raise QueryError("there is a token, which is sent by https alone: change anomalies.prometheus.url")
    token = file.read_bytes()[: _MOST_TOKEN + 1].decode("ascii").strip()
    if not token or len(token) > _MOST_TOKEN or not token.isprintable():
        raise QueryError(f"the Secret's {TOKEN} is no token: write one line of printable letters")
    return {"Authorization": f"Bearer {token}"}
