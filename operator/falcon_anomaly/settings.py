"""Read the service's settings from ``FALCON_*`` environment variables.

All problems are found at once, each with the variable's name and the remedy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from falcon_anomaly.queries.specification import Specification, parse
from falcon_core import environment
from falcon_listen.api_server import SERVICE_ACCOUNT

EXIT_CONFIG = environment.EXIT_CONFIG
DEFAULT_LIMIT_BYTES = 512 << 20
PROGRAM_BYTES = 192 << 20  # interpreter, libraries, and what one look needs
LEAST_BYTES = 32 << 20
LogLevel = Literal["debug", "info", "warning", "error"]


class SettingsError(ValueError):
    """The error of settings that are missing or wrong, with a line for each problem."""


def _lower(raw: object) -> object:
    return raw.strip().lower() if isinstance(raw, str) else raw


Text = Annotated[str, Field(min_length=1)]
Port = Annotated[int, Field(ge=0, le=65_535, description="a whole number from 0 to 65535")]


class Settings(BaseSettings):
    """The settings that the chart sets for the anomaly service."""

    model_config = SettingsConfigDict(
        env_prefix=environment.PREFIX,
        env_ignore_empty=True,
        str_strip_whitespace=True,
        frozen=True,
        arbitrary_types_allowed=True,
    )

    gateways: Annotated[tuple[str, ...], NoDecode, BeforeValidator(environment.addresses)]  # each leads to several
    gateway_name: Text  # in the gateways' certificate
    tls_dir: Path  # ca.crt, tls.crt, tls.key
    tls_secret: Text = "anomalies-tls"  # name of the Secret that holds them; the metric of its expiry has it
    memory_limit_bytes: Annotated[int, Field(ge=0, description="a whole number of bytes")] = 0  # 0: none
    port: Port = 8443
    metrics_port: Port = 8080
    metrics_reader: str = ""  # the ClusterRole whose subjects alone may read /metrics, by TLS; empty: every client may
    metrics_tls_port: Port = 8444
    service_account_dir: Path = SERVICE_ACCOUNT  # token, ca.crt: with them the service asks about its clients' tokens
    prometheus: Annotated[Specification | None, NoDecode, BeforeValidator(parse)] = None  # None: none is asked
    prometheus_dir: Path | None = None  # may have token and ca.crt
    log_level: Annotated[LogLevel, BeforeValidator(_lower), Field(description="one of debug, info, warning, error")] = (
        "info"
    )

    @property
    def most_bytes(self) -> int:
        """Return how many bytes all boards may take together.

        Half of what the program leaves of the limit: the other half is for a board that grows beyond the bound
        while one chunk is read.
        """
        limit = self.memory_limit_bytes or DEFAULT_LIMIT_BYTES
        return max(LEAST_BYTES, (limit - PROGRAM_BYTES) // 2)


def load() -> Settings:
    """Read the environment. Raises :class:`SettingsError`, which lists every problem."""
    try:
        return Settings.model_validate({})
    except ValidationError as error:
        wanted = {name: field.description for name, field in Settings.model_fields.items()}
        unset = "set it in the anomaly service's Deployment (the chart does)"
        raise SettingsError(environment.describe(error.errors(), wanted, unset)) from None
