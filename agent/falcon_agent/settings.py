"""The agent's settings, from the environment that the operator renders into the pod."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from falcon_core.wire.keys import JobKey

EXIT_CONFIG = 78


class SettingsError(ValueError):
    """The environment does not do; the message names the variable and the remedy."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Who this pod is, and where the bus is."""

    job: JobKey
    pod: str
    pod_uid: str
    node: str
    run_dir: Path
    etcd_endpoints: tuple[str, ...]
    etcd_tls_dir: Path | None  # ca.crt, tls.crt, tls.key; None: plain text
    log_level: str


def load_settings(environ: Mapping[str, str]) -> Settings:
    """Read ``FALCON_*``.

    Raises:
        SettingsError: one is missing or cannot be used.
    """

    def need(name: str) -> str:
        value = environ.get(name, "")
        if not value:
            raise SettingsError(f"{name} is not set: the operator sets it; is this pod Falcon's?")
        return value

    endpoints = tuple(part.strip() for part in need("FALCON_ETCD_ENDPOINTS").split(",") if part.strip())
    if not endpoints or not all(":" in endpoint for endpoint in endpoints):
        raise SettingsError("FALCON_ETCD_ENDPOINTS: want host:port, several separated by commas")
    tls_dir = Path(environ["FALCON_ETCD_TLS_DIR"]) if environ.get("FALCON_ETCD_TLS_DIR") else None
    if tls_dir is not None and not (tls_dir / "tls.crt").exists():
        raise SettingsError(
            f"FALCON_ETCD_TLS_DIR: {tls_dir}/tls.crt does not exist: is the job's Secret mounted there?"
        )
    level = environ.get("FALCON_LOG_LEVEL", "info")
    if level not in ("debug", "info", "warning", "error"):
        raise SettingsError(f"FALCON_LOG_LEVEL: {level!r} is none of debug, info, warning, error")
    return Settings(
        job=JobKey(need("FALCON_NAMESPACE"), need("FALCON_JOB"), need("FALCON_JOB_UID")),
        pod=need("FALCON_POD"),
        pod_uid=need("FALCON_POD_UID"),
        node=need("FALCON_NODE"),
        run_dir=Path(environ.get("FALCON_RUN_DIR", "/falcon/run")),
        etcd_endpoints=endpoints,
        etcd_tls_dir=tls_dir,
        log_level=level,
    )
