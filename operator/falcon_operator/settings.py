"""The operator's settings, from ``FALCON_*`` environment variables.

All problems are found at once, each with the variable's name and the remedy: a pod that restarts once a mistake wastes
a person's time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal, TypeVar, get_args

import msgspec

from falcon_operator.manifests.instrument import PodSettings

EXIT_CONFIG = 78  # sysexits.h EX_CONFIG
LogLevel = Literal["debug", "info", "warning", "error"]
PullPolicy = Literal["Always", "IfNotPresent", "Never"]
_T = TypeVar("_T")


class SettingsError(ValueError):
    """One line a problem."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the chart tells the operator."""

    namespace: str  # its own
    pod: str
    identity: str  # in the Lease
    etcd_endpoints: tuple[str, ...]
    etcd_secret_prefix: str
    etcd_server_names: tuple[str, ...] = ()  # in the server certificate; needed where etcd is managed
    etcd_managed: bool = True  # False: etcd and its authority belong to someone else
    agent_image: str
    agent_image_pull_policy: PullPolicy = "IfNotPresent"
    watch_namespaces: tuple[str, ...] = ()  # empty: all
    fence_limit: int = 2
    fence_window_seconds: int = 3600
    log_level: LogLevel = "info"
    metrics_port: int = 8080

    @property
    def pods(self) -> PodSettings:
        """What goes into the jobs' pods."""
        return PodSettings(
            agent_image=self.agent_image,
            image_pull_policy=self.agent_image_pull_policy,
            etcd_endpoints=",".join(self.etcd_endpoints),
        )


def load(environ: Mapping[str, str]) -> Settings:
    """Read and check. Raises :class:`SettingsError` that lists every problem."""
    reader = _Reader(environ)
    managed = reader.value("FALCON_ETCD_MANAGED", _boolean, "true")
    pod = reader.text("FALCON_POD")
    settings = Settings(
        namespace=reader.text("FALCON_NAMESPACE"),
        pod=pod,
        identity=environ.get("FALCON_IDENTITY") or pod,
        etcd_endpoints=reader.value("FALCON_ETCD_ENDPOINTS", _endpoints),
        etcd_secret_prefix=reader.text("FALCON_ETCD_SECRET_PREFIX"),
        etcd_server_names=reader.value("FALCON_ETCD_SERVER_NAMES", _words, None if managed else ""),
        etcd_managed=managed,
        agent_image=reader.text("FALCON_AGENT_IMAGE"),
        agent_image_pull_policy=reader.value("FALCON_AGENT_IMAGE_PULL_POLICY", _pull_policy, "IfNotPresent"),
        watch_namespaces=reader.value("FALCON_WATCH_NAMESPACES", _words, ""),
        fence_limit=reader.value("FALCON_FENCE_LIMIT", _integer(0, 1_000_000), "2"),
        fence_window_seconds=reader.value("FALCON_FENCE_WINDOW_SECONDS", _integer(1, 31_536_000), "3600"),
        log_level=reader.value("FALCON_LOG_LEVEL", _log_level, "info"),
        metrics_port=reader.value("FALCON_METRICS_PORT", _integer(0, 65_535), "8080"),
    )
    if reader.problems:
        raise SettingsError("\n".join(reader.problems))
    return settings


class _Reader:
    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self.problems: list[str] = []

    def text(self, name: str) -> str:
        return self.value(name, str)

    def value(self, name: str, parse: Callable[[str], _T], default: str | None = None) -> _T:
        """The parsed variable. A problem is noted, and a value returned that nobody will see."""
        raw = self._environ.get(name, "").strip()
        if not raw and default is None:
            self.problems.append(f"{name} is not set: set it in the operator's Deployment (the chart does)")
            return parse(_PLACEHOLDER)
        try:
            return parse(raw or default or "")
        except ValueError as error:
            self.problems.append(f"{name}={raw!r}: {error}")
            return parse(_PLACEHOLDER if default is None else default)


_PLACEHOLDER = "https://unset:1"  # text and endpoint alike, for a value that is reported as missing


def _words(raw: str) -> tuple[str, ...]:
    return tuple(word for part in raw.split(",") if (word := part.strip()))


def _endpoints(raw: str) -> tuple[str, ...]:
    endpoints = _words(raw)
    for endpoint in endpoints:
        if not endpoint.startswith("https://") or ":" not in endpoint.removeprefix("https://"):
            raise ValueError(f"{endpoint!r} is not https://host:port: the agents' identity is their TLS certificate")
    return endpoints


def _boolean(raw: str) -> bool:
    if raw.lower() not in ("true", "false"):
        raise ValueError("write true or false")
    return raw.lower() == "true"


def _integer(least: int, most: int) -> Callable[[str], int]:
    def parse(raw: str) -> int:
        number = int(raw) if raw.isascii() and raw.isdecimal() else -1
        if not least <= number <= most:
            raise ValueError(f"write a whole number from {least} to {most}")
        return number

    return parse


def _log_level(raw: str) -> LogLevel:
    for level in get_args(LogLevel):
        if raw.lower() == level:
            return level  # type: ignore[no-any-return]
    raise ValueError(f"write one of {', '.join(get_args(LogLevel))}")


def _pull_policy(raw: str) -> PullPolicy:
    for policy in get_args(PullPolicy):
        if raw == policy:
            return policy  # type: ignore[no-any-return]
    raise ValueError(f"write one of {', '.join(get_args(PullPolicy))}")
