"""The certificate of agents that copy checkpoints to each other, renewed while they do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from falcon_agent.checkpoint import replication
from tests.integration.agent.checkpoints.test_copying import Pod, make, ready, tell, until

__all__ = ["make"]  # the fixture


async def test_a_certificate_that_cannot_be_read_for_a_while_does_not_end_the_copies(
    make: Callable[..., Pod], tmp_path: Path
) -> None:
    saving, keeper = make("saving", 0), make("keeper", 1)
    await ready(saving, keeper)
    tell([saving, keeper], {"saving": "keeper", "keeper": "saving"})
    saving.save(20)
    await until("the first is copied", lambda: saving.told == (True, {0: 20}))

    certificate = tmp_path / "tls" / "tls.crt"
    content = certificate.read_bytes()
    certificate.unlink()
    await asyncio.sleep(3 * replication.LOOK_SECONDS)
    certificate.write_bytes(content)
    saving.save(40, number=1)
    await until("the next is copied", lambda: saving.told == (True, {0: 40}))
    assert keeper.report.port, "it still takes copies"
