"""Make the two calls to the API server that the daemon needs, with the pod's own ServiceAccount."""

from __future__ import annotations

import contextlib
import http.client
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec

TIMEOUT_SECONDS = 15.0
STRATEGIC_MERGE = "application/strategic-merge-patch+json"  # conditions are merged by their type
_MOST_SHOWN = 300  # bytes of a refusal


class Refused(OSError):  # noqa: N818 - HTTP's word
    """The error of a call that the API server did not carry out."""


class NodeCondition(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """v1.NodeCondition; times as RFC 3339."""

    type: str
    status: str = ""
    reason: str = ""
    message: str = ""
    last_heartbeat_time: str | None = None
    last_transition_time: str | None = None


class _Status(msgspec.Struct, frozen=True):
    conditions: tuple[NodeCondition, ...] = ()


class _Node(msgspec.Struct, frozen=True):
    status: _Status = _Status()


class NodeApi:
    """One node at the API server, whose address Kubernetes gives to each pod (KUBERNETES_SERVICE_*).

    ``account``: the folder with the ServiceAccount's token and ca.crt.
    """

    def __init__(self, node: str, account: Path, environment: Mapping[str, str] = os.environ) -> None:
        self._path = f"/api/v1/nodes/{quote(node, safe='')}"
        self._account = account
        self._host = environment.get("KUBERNETES_SERVICE_HOST", "kubernetes.default.svc")
        self._port = int(environment.get("KUBERNETES_SERVICE_PORT", "443"))

    def conditions(self) -> dict[str, NodeCondition]:
        """Read the node's conditions, by type. Raises OSError."""
        try:
            node = msgspec.json.decode(self._call("GET", self._path), type=_Node)
        except msgspec.DecodeError as error:
            raise Refused(f"GET {self._path}: an answer that is no Node: {error}") from error
        return {condition.type: condition for condition in node.status.conditions}

    def write(self, conditions: list[dict[str, Any]]) -> None:
        """Put conditions in the place of those of the same types. Raises OSError."""
        body = msgspec.json.encode({"status": {"conditions": conditions}})
        self._call("PATCH", f"{self._path}/status", body)

    def _call(self, method: str, path: str, body: bytes | None = None) -> bytes:
        # The kubelet renews both files while the pod lives.
        token = (self._account / "token").read_text().strip()
        trust = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=TIMEOUT_SECONDS, context=trust)
        headers = {"Authorization": f"Bearer {token}", "Accept": "application/json", "User-Agent": "falcon-node"}
        if body is not None:
            headers["Content-Type"] = STRATEGIC_MERGE
        with contextlib.closing(connection):
            try:
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
                data = answer.read()
            except http.client.HTTPException as error:
                raise Refused(f"{method} {path}: {error!r}") from error
        if answer.status != http.HTTPStatus.OK:
            raise Refused(f"{method} {path}: {answer.status} {data[:_MOST_SHOWN].decode(errors='replace')}")
        return data
