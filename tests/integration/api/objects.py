"""Objects of a kube-apiserver, read and written over one kept connection.

A kubectl takes a twentieth of a second of CPU for each call, and tests that play kubelets make thousands.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
import urllib.parse
from typing import Any

from tests.integration.api.apiserver import TOKEN, ApiServer

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"  # which JSON is, too
DISCOVERY = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
MANAGER = "kubectl"  # who owns the fields that are applied


class RefusedError(RuntimeError):
    """The server refused a change, in its own words, or does not know the kind."""


class Objects:
    """The objects of a server, for its administrator."""

    def __init__(self, api: ApiServer) -> None:
        trusted = ssl.create_default_context(cafile=str(api.ca_file))
        where = urllib.parse.urlsplit(api.url).netloc
        self._connection = http.client.HTTPSConnection(where, timeout=60, context=trusted)
        self._kinds: dict[str, tuple[str, bool]] = {}  # by each name of a kind: its path, and whether it has namespaces

    def get(self, kind: str, name: str, namespace: str) -> Any:
        """Return an object; without a name all objects of the kind. None where there is none, or no server."""
        try:
            status, answer = self._request("GET", self._path(kind, name, namespace), JSON)
        except (OSError, http.client.HTTPException, RefusedError):
            return None
        if status != http.HTTPStatus.OK:
            return None
        return answer if name else answer["items"]

    def apply(self, manifest: dict[str, Any], namespace: str = "default") -> None:
        """Apply a manifest on the server's side. Raises RefusedError."""
        about = manifest["metadata"]
        path = self._path(manifest["kind"], about["name"], about.get("namespace", namespace))
        self._change(f"{path}?fieldManager={MANAGER}", APPLY_PATCH, manifest)

    def patch_status(self, kind: str, name: str, namespace: str, status: dict[str, Any]) -> None:
        """Merge a status into an object's. Raises RefusedError."""
        self._change(f"{self._path(kind, name, namespace)}/status", MERGE_PATCH, {"status": status})

    def _change(self, path: str, content_type: str, body: dict[str, Any]) -> None:
        status, answer = self._request("PATCH", path, content_type, body)
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise RefusedError(f"{path}: {answer.get('message', answer)}")

    def _path(self, kind: str, name: str, namespace: str) -> str:
        if kind.lower() not in self._kinds:
            self._discover()
        try:
            path, namespaced = self._kinds[kind.lower()]
        except KeyError:
            raise RefusedError(f"the server has no kind {kind}") from None
        group, plural = path.rsplit("/", 1)
        where = f"{group}/namespaces/{namespace}/{plural}" if namespaced else path
        return f"{where}/{name}" if name else where

    def _discover(self) -> None:
        """Read the names of all kinds, as kubectl does."""
        for root in ("/apis", "/api"):  # the core group is read last: its events are meant by that name
            _, answer = self._request("GET", root, DISCOVERY)
            for group in answer["items"]:
                group_name = group["metadata"].get("name", "")
                for version in reversed(group["versions"]):  # the preferred one is first
                    of_version = f"{root}/{group_name}/{version['version']}".replace("//", "/")
                    for each in version.get("resources", []):
                        known = f"{of_version}/{each['resource']}", each["scope"] == "Namespaced"
                        names = [each["resource"], each["singularResource"], each["responseKind"]["kind"]]
                        self._kinds.update({name.lower(): known for name in names})

    def _request(self, method: str, path: str, accepts: str, body: dict[str, Any] | None = None) -> tuple[int, Any]:
        content_type = {"Content-Type": accepts} if body is not None else {}
        headers = {"Authorization": f"Bearer {TOKEN}", "Accept": JSON if body is not None else accepts, **content_type}
        sent = json.dumps(body) if body is not None else None
        try:
            answer = self._answer(method, path, sent, headers)
        except (ConnectionError, http.client.HTTPException):
            self._connection.close()  # the server has ended the kept connection, or has begun again
            answer = self._answer(method, path, sent, headers)
        read = answer.read()
        with contextlib.suppress(json.JSONDecodeError):
            return answer.status, json.loads(read)
        return answer.status, {"message": read.decode(errors="replace")}

    def _answer(self, method: str, path: str, body: str | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        try:
            self._connection.request(method, path, body, headers)
            return self._connection.getresponse()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            raise
