"""The plugin's archive for Krew, unpacked and run as Krew does it: by the machine's own Python, without any package.

Krew itself is not here: what it would check, the sum, the files and the program's name, is checked instead of it.
"""

from __future__ import annotations

import ast
import hashlib
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import yaml

from dev import plugin
from tests.integration.api.apiserver import binary


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the archive by its command, and unpack what the manifest says; return the folder."""
    folder = tmp_path_factory.mktemp("plugin")
    command = [sys.executable, "-m", "dev.plugin", str(folder), "--uri", "https://releases.example.org/falcon.tar.gz"]
    subprocess.run(command, cwd=plugin.ROOT, check=True)
    manifest = yaml.safe_load((folder / plugin.MANIFEST).read_text())
    (platform,) = manifest["spec"]["platforms"]
    packed = (folder / plugin.ARCHIVE).read_bytes()
    assert hashlib.sha256(packed).hexdigest() == platform["sha256"]
    assert platform["uri"] == "https://releases.example.org/falcon.tar.gz"
    with tarfile.open(folder / plugin.ARCHIVE) as tar:
        assert tar.getnames() == [file["from"] for file in platform["files"]]
    (folder / "bin").mkdir()
    subprocess.run(["tar", "-xzf", folder / plugin.ARCHIVE, "-C", folder / "bin"], check=True)
    assert os.access(folder / "bin" / platform["bin"], os.X_OK)
    return folder / "bin"


def bare(*command: str, path: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose Python sees no installed package."""
    environment = {
        "PATH": f"{path}:{Path(binary('kubectl')).parent}:{Path(sys.base_prefix) / 'bin'}:/usr/bin:/bin",
        "HOME": "/nonexistent",
        "PYTHONNOUSERSITE": "1",
    }
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_kubectl_finds_it_and_it_needs_no_package(installed: Path) -> None:
    shown = bare("kubectl", "falcon", "--version", path=installed)
    assert shown.stdout == f"kubectl-falcon {plugin.__version__}\n", shown.stderr
    refused = bare("kubectl", "falcon", "explain", "gpt2", path=installed)
    assert refused.returncode == 1
    assert "Traceback" not in refused.stderr
    assert "kubectl" in refused.stderr, "there is no cluster, and it says so"


def test_each_command_can_be_asked_for_help(installed: Path) -> None:
    for command in ("explain", "timeline", "top", "export", "check", "suspend", "resume"):
        assert bare(str(installed / plugin.PROGRAM), command, "--help", path=installed).returncode == 0


def test_an_old_python_can_read_that_it_is_too_old() -> None:
    ast.parse(plugin.MAIN, feature_version=(3, 4))


def test_the_same_sources_give_the_same_bytes() -> None:
    assert plugin.archive() == plugin.archive()
