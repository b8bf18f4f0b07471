"""The agent's settings, from the environment that the operator renders into the pod.

All problems are found at once, each with the variable's name and the remedy.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from falcon_core import environment
from falcon_core.errors.judge import platform_judge
from falcon_core.wire.keys import JobKey
from falcon_core.wire.saves.checkpoint import CHECKPOINT_DIR, COPIES_DIR

EXIT_CONFIG = environment.EXIT_CONFIG
CREDENTIALS = ("ca.crt", "tls.crt", "tls.key")
LogLevel = Literal["debug", "info", "warning", "error"]
_S = TypeVar("_S", bound=BaseSettings)


class SettingsError(ValueError):
    """The error of settings that are missing or wrong, with a line for each problem."""


def _with_certificate(folder: Path) -> Path:
    missing = [name for name in CREDENTIALS if not (folder / name).exists()]
    if missing:
        raise ValueError(f"{folder}/{missing[0]} does not exist: is the job's Secret mounted there?")
    return folder


Text = Annotated[str, Field(min_length=1)]


class Settings(BaseSettings):
    """The identity of this pod, and where it reports."""

    model_config = SettingsConfigDict(
        env_prefix=environment.PREFIX, env_ignore_empty=True, str_strip_whitespace=True, frozen=True
    )

    namespace: Text
    job_name: Annotated[Text, Field(validation_alias="FALCON_JOB")]
    job_uid: Text
    pod: Text
    pod_uid: Text
    node: Text
    run_dir: Path = Path("/falcon/run")
    gateways: Annotated[tuple[str, ...], NoDecode, BeforeValidator(environment.addresses)]
    gateway_tls_dir: Annotated[Path, AfterValidator(_with_certificate)]  # with CREDENTIALS
    checkpoint_dir: Path = Path(CHECKPOINT_DIR)
    checkpoint_bytes: Annotated[int, Field(ge=0, description="a number of bytes; 0: no checkpoints in memory")] = 0
    checkpoint_ranks: Annotated[int, Field(ge=1, description="how many ranks the pod has")] = 1
    copies_dir: Path = Path(COPIES_DIR)
    copies_bytes: Annotated[int, Field(ge=0, description="a number of bytes; 0: no copies are kept")] = 0
    copies_interface: str = ""  # over which copies come and go; "": any
    log_level: Annotated[LogLevel, Field(description="one of debug, info, warning, error")] = "info"

    @property
    def job(self) -> JobKey:
        """Return the job's identity on the bus."""
        return JobKey(self.namespace, self.job_name, self.job_uid)


def _error_table(text: str) -> str:
    platform_judge(text)  # a TableError is a ValueError, which names the field and the remedy
    return text


class NodeSettings(BaseSettings):
    """The settings of the node's daemon, which the chart renders."""

    model_config = Settings.model_config

    node: Text
    sysfs: Path = Path("/sys")  # of the host
    pod_uid: str = ""  # its own, by which it finds the groups of all pods; without it no pod is named
    pod_logs: Path = Path("/var/log/pods")  # of the host
    account: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")  # with token and ca.crt
    errors: Annotated[str, AfterValidator(_error_table)] = ""  # laid over the table of error classes (YAML)
    log_level: Annotated[LogLevel, Field(description="one of debug, info, warning, error")] = "info"


def load_settings() -> Settings:
    """Read the environment. Raises :class:`SettingsError`, which lists every problem."""
    return _load(Settings, "the operator sets it; is this pod Falcon's?")


def load_node_settings() -> NodeSettings:
    """Read the environment of the node's daemon. Raises :class:`SettingsError`, which lists every problem."""
    return _load(NodeSettings, "the chart sets it (nodeAgent.enabled)")


def _load(kind: type[_S], unset: str) -> _S:
    try:
        return kind.model_validate({})
    except ValidationError as error:
        wanted = {name: field.description for name, field in kind.model_fields.items()}
        raise SettingsError(environment.describe(error.errors(), wanted, unset)) from None
