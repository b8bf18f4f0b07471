"""A kind that the ConfigMap of learned limits has no room for is logged once, and hides no other kind."""

from __future__ import annotations

from typing import Any

import msgspec
from structlog.testing import capture_logs

from falcon_core.job_kind import kind_of
from falcon_core.wire.lessons import MAX_MODELS_BYTES
from falcon_operator.cluster.model_map import ModelMap

FIRST, SECOND = sorted(kind_of(f"n{number}", {}) for number in range(2))


class Server:
    """The API server with one ConfigMap."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data = data

    async def call(self, method: str, path: str) -> bytes:
        assert method == "GET"
        return msgspec.json.encode({"metadata": {"resourceVersion": "1"}, "data": self.data})


async def test_a_kind_without_room_is_logged_once_and_the_others_are_read() -> None:
    server: Any = Server({FIRST: "y" * (MAX_MODELS_BYTES + 1), SECOND: "x", "README": "z" * MAX_MODELS_BYTES})
    models = ModelMap(server, "falcon", "models")
    with capture_logs() as logs:
        for _ in range(3):
            assert (await models.read()).models == {SECOND: "x"}
    assert [line["kinds"] for line in logs] == [[FIRST]]
    server.data[FIRST] = "y"
    with capture_logs() as logs:
        assert (await models.read()).models == {FIRST: "y", SECOND: "x"}
    assert logs == []
