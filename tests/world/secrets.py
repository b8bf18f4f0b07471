"""The API server's Secrets in memory, as ``StoredPairs`` uses them."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any

from falcon_operator.base.ports import NotFound


class Secrets:
    """In the transport's place. Objects are found by their paths."""

    def __init__(self) -> None:
        self.stored: dict[str, Any] = {}
        self.writes = 0

    async def call(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None, **_: Any
    ) -> bytes:
        """Answer a request. Raises NotFound for a Secret that does not exist."""
        if method == "GET":
            if path not in self.stored:
                raise NotFound(path)
            return json.dumps(self.stored[path]).encode()
        self.writes += 1
        target = f"{path}/{body['metadata']['name']}" if method == "POST" else path
        self.stored[target] = {**body, "metadata": {**body["metadata"], "resourceVersion": str(self.writes)}}
        return b"{}"

    def files(self, namespace: str, name: str) -> dict[str, bytes]:
        """Return a Secret's files, as a volume shows them. Raises KeyError where there is no such Secret."""
        data = self.stored[f"/api/v1/namespaces/{namespace}/secrets/{name}"]["data"]
        return {file: base64.b64decode(content) for file, content in data.items()}

    def write(self, namespace: str, name: str, files: Mapping[str, bytes]) -> None:
        """Overwrite a Secret, as a person does."""
        self.writes += 1
        data = {file: base64.b64encode(content).decode() for file, content in files.items()}
        path = f"/api/v1/namespaces/{namespace}/secrets/{name}"
        self.stored[path] = {"metadata": {"resourceVersion": str(self.writes)}, "data": data}

    def delete(self, namespace: str, name: str) -> None:
        """Delete a Secret, as a person does. Raises KeyError where there is none."""
        del self.stored[f"/api/v1/namespaces/{namespace}/secrets/{name}"]
