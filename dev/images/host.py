"""Read what a build needs of this machine's configuration: where Debian and Python packages come from.

The configuration reaches the build steps as secret mounts, so that no layer and no file of the tree contains it.
"""

from __future__ import annotations

import ast
import os
import ssl
import subprocess
from pathlib import Path

SUITE = "bookworm"


class HostError(RuntimeError):
    """The error of a configuration of this machine that does not suffice; the message says for what and what to do."""


def debian_sources() -> list[str]:
    """Return sources.list lines for the suite, its updates and its security fixes, from apt's own configuration.

    Raises:
        HostError: apt is absent or configured for another release.
    """
    fields = "$(SITE)|$(RELEASE)|$(COMPONENT)|$(CODENAME)|$(ORIGIN)"
    listed = _output("apt-get", "indextargets", "--format", fields, "Created-By: Packages")
    targets = sorted({tuple(line.split("|")) for line in listed.splitlines()})
    lines = [
        f"deb {site} {release} {component}"
        for site, release, component, codename, origin in targets
        if origin == "Debian" and codename.split("-")[0] == SUITE
    ]
    if not lines:
        raise HostError(
            f"apt on this machine knows no Debian {SUITE}: run apt-get update, or name a base image that buildah can "
            "pull: make images BASE=docker.io/library/debian:bookworm-slim"
        )
    return lines


def debian_mirror(sources: list[str]) -> str:
    """Return the mirror of the suite itself, which debootstrap takes."""
    found = [line.split()[1] for line in sources if line.split()[2] == SUITE]
    if not found:
        raise HostError(
            f"apt on this machine knows updates of Debian {SUITE} but not {SUITE} itself: add it, then apt-get update"
        )
    return found[0]


def apt_settings() -> str:
    """Return how apt fetches on this machine (proxies, checks), in the form of apt.conf."""
    wanted = ("Acquire::http", "Acquire::https", "Acquire::Retries", "Acquire::Check-")
    lines = _output("apt-config", "dump", "Acquire").splitlines()
    return "\n".join(line for line in lines if line.startswith(wanted)) + "\n"


def _pip() -> str:
    """Return the path of the pip that installed uv; the virtual environment, which may be first on PATH, has no pip."""
    ours = Path(os.environ.get("FALCON_CACHE", Path.home() / ".cache" / "falcon")) / "uv" / "bin" / "pip"
    return str(ours) if ours.exists() else "pip3"


def pip_settings(certificates: str) -> str:
    """Return pip's index settings on this machine, as a pip.conf.

    ``certificates`` is the path of the certificates inside the build.
    """
    settings = {"cert": certificates}
    for line in _output(_pip(), "config", "list").splitlines():
        key, _, value = line.partition("=")
        name = key.rpartition(".")[2]
        if name in {"index-url", "extra-index-url", "proxy", "trusted-host"}:
            settings[name] = str(ast.literal_eval(value))
    return "[global]\n" + "".join(f"{name} = {value}\n" for name, value in settings.items())


def certificates() -> str:
    """Return the certificates of the authorities that this machine trusts, as PEM.

    A company's proxy may be among the authorities. Raises :class:`HostError` when there is no file of certificates.
    """
    paths = [os.environ.get(name, "") for name in ("PIP_CERT", "SSL_CERT_FILE")]
    found = [path for path in (*paths, ssl.get_default_verify_paths().cafile or "") if path and Path(path).is_file()]
    if not found:
        raise HostError("no file of trusted certificates: install ca-certificates or set SSL_CERT_FILE")
    return Path(found[0]).read_text()


def write_secrets(folder: Path) -> list[str]:
    """Write all settings into a folder for one build. Return buildah's arguments that mount the files."""
    contents = {
        "apt-sources": "\n".join(debian_sources()) + "\n",
        "apt-conf": apt_settings(),
        "pip-conf": pip_settings("/run/secrets/ca-certificates"),
        "ca-certificates": certificates(),
    }
    arguments = []
    for name, content in contents.items():
        (folder / name).write_text(content)
        arguments.append(f"--secret=id={name},src={folder / name}")
    return arguments


def _output(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
    except FileNotFoundError as error:
        raise HostError(f"{command[0]} is not installed: images are built on a Debian machine") from error
    except subprocess.CalledProcessError as error:
        raise HostError(f"{' '.join(command)} failed: {error.stderr.strip()}") from error
