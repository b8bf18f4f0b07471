"""Post objects to the API server with the service account that Kubernetes gives a pod."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from falcon_listen.access import ReviewError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class _Status(msgspec.Struct, frozen=True):
    message: str = ""


class ApiServer:
    """The API server that ``environment`` names, and the files ``token`` and ``ca.crt`` of a service account.

    Raises OSError, whose message names the remedy, where the process does not run in a pod.
    """

    def __init__(self, environment: Mapping[str, str], account: Path = SERVICE_ACCOUNT) -> None:
        host, port = (environment.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host or not port:
            raise OSError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set: run in a pod")
        self._url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        self._account = account

    async def post(self, path: str, body: dict[str, Any]) -> bytes:
        """Create an object and return the server's answer. Raises :class:`ReviewError`.

        The files are read for each call: the kubelet renews the token every hour.
        """
        try:
            token = (self._account / "token").read_text().strip()
            trusted = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except OSError as error:
            raise ReviewError(f"no token of a service account: {error}") from error
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session,
                session.post(self._url + path, data=msgspec.json.encode(body), headers=headers) as answer,
            ):
                data = await answer.read()
        except aiohttp.ClientError as error:
            raise ReviewError(f"the API server does not answer: {error or type(error).__name__}") from error
        if answer.status not in (200, 201):
            raise ReviewError(f"the API server refuses the question: {_message(data) or f'HTTP {answer.status}'}")
        return data


def _message(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_Status).message
    except msgspec.MsgspecError:
        return ""
