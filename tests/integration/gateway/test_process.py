"""The process: its settings, pages and certificates, and which operator it follows."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import signal
import ssl
import subprocess

import pytest
from cryptography import x509

from falcon_gateway import Desired, Leader, OperatorClient, Refused
from falcon_operator.bus import certs, tls_files
from tests.integration.gateway.gateways import BINARY, GPT, Site, eventually
from tests.integration.operator.cluster import until_async


def test_all_mistakes_in_the_settings_are_named_at_once() -> None:
    environment = {"FALCON_GATEWAY_ID": "g", "FALCON_MAX_CONNECTIONS": "many"}
    ended = subprocess.run([str(BINARY)], env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 78
    named = {line.partition("=")[0].partition(" ")[0] for line in ended.stderr.splitlines()}
    assert named == {
        "FALCON_MAX_CONNECTIONS",
        "FALCON_POD_IP",
        "FALCON_TLS_DIR",
        "FALCON_JOBS_AUTHORITY",
        "FALCON_ETCD_ENDPOINTS",
        "FALCON_ETCD_TLS_DIR",
    }


async def test_it_is_ready_when_it_knows_the_jobs(site: Site) -> None:
    site.etcd.kill()
    gateway = site.gateway()
    await eventually(lambda: gateway.page("healthz"))
    assert not await gateway.page("readyz")
    async with site.leader(gateway, GPT):
        await gateway.ready()  # the operator's stream is enough


async def test_it_ends_by_sigterm_though_etcd_is_away(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT) as operator, site.agent(GPT, 0) as agent:
        agent.client.report(b"well")
        await operator.sees(GPT, 0, b"well")
        site.etcd.kill()
        assert await gateway.end(signal.SIGTERM) == 0


async def test_an_operator_of_a_lower_epoch_is_refused(site: Site) -> None:
    gateway = site.gateway()
    async with site.leader(gateway, GPT, epoch=1) as former, site.agent(GPT, 0) as agent:
        await until_async(lambda: former.client.complete)
        async with site.leader(gateway, GPT, epoch=2) as leader:
            await until_async(lambda: leader.client.complete)
            tls = site.tls(site.control, "root")
            stale = OperatorClient(gateway.operator, tls, Desired(), Leader("stale", 1), lambda _: None)
            with pytest.raises(Refused, match="epoch 1 is over"):
                await stale.run()
            former.desired.publish(GPT.plan(b"of the former leader"))
            leader.desired.publish(GPT.plan(b"of the leader"))
            await until_async(lambda: b"of the leader" in agent.commands)
            assert agent.commands == [b"of the leader"]


async def test_a_renewed_certificate_is_taken_up(site: Site) -> None:
    gateway = site.gateway()
    await gateway.ready()
    folder = site.control.server("localhost").cert.parent
    now = dt.datetime.now(dt.UTC)
    renewed = certs.issue_server(site.control.pair, ["localhost"], now)
    tls_files.write(folder, site.control.pair.cert, renewed)
    expected = x509.load_pem_x509_certificate(renewed.cert).serial_number

    async def shown() -> bool:
        return await _serial(site, gateway.agents) == expected

    await eventually(shown)


async def test_its_metrics_say_when_the_certificates_expire_that_it_shows(site: Site) -> None:
    """While no operator runs, nothing else says it."""
    gateway = site.gateway()
    await gateway.ready()
    tls, etcd = (site.control.server("localhost").cert, site.control.client("root").cert)

    async def shown() -> dict[str, float]:
        samples = await gateway.samples()
        wanted = "falcon_certificate_expires_timestamp_seconds"
        return {sample.labels["secret"]: sample.value for sample in samples if sample.name == wanted}

    def of_files() -> dict[str, float]:
        files = {"falcon-gateway-tls": tls, "falcon-etcd-root": etcd}
        return {secret: certs.expires_unix(file.read_bytes()) for secret, file in files.items()}

    assert await shown() == of_files()
    made = dt.datetime.now(dt.UTC) - dt.timedelta(days=40)  # expires earlier
    tls_files.write(tls.parent, site.control.pair.cert, certs.issue_server(site.control.pair, ["localhost"], made))

    async def renewed() -> bool:
        return await shown() == of_files()

    await eventually(renewed)


async def _serial(site: Site, endpoint: str) -> int:
    """Return the serial number of the certificate that a gateway shows."""
    host, port = endpoint.split(":")
    context = ssl.create_default_context(cafile=str(site.control.ca))
    issued = site.jobs.client(GPT.uid)
    context.load_cert_chain(issued.cert, issued.key)
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return x509.load_der_x509_certificate(shown).serial_number
