"""The wheel, as a user installs it: each extra alone, in an environment that has nothing else.

Needs uv, whose path the Makefile exports as ``UV``; the versions are those of ``constraints.txt``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
UV = os.environ.get("UV") or shutil.which("uv") or ""
PROGRAMS = ("falcon-operator", "falcon-anomaly", "falcon-agent", "falcon-sim", "kubectl-falcon")
RECORDING = ROOT / "examples" / "recordings" / "straggler"
SCENARIO = ROOT / "examples" / "simulation" / "straggler.yaml"

pytestmark = pytest.mark.skipif(not UV, reason="no uv: run this through make, which installs it and exports UV")


def run(*command: str | Path, cwd: Path, succeeds: bool = True) -> subprocess.CompletedProcess[str]:
    """Run to the end, without the tree's own modules on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "FALCON"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if succeeds:
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done


class Environment:
    """A bare virtual environment with the wheel and, at most, one of its extras."""

    def __init__(self, folder: Path, wheel: Path, extra: str) -> None:
        self.folder = folder
        self.cwd = folder.parent
        run(UV, "venv", "-q", "--python", "python3.11", folder, cwd=self.cwd)
        wanted = f"falcon-training[{extra}] @ {wheel.as_uri()}" if extra else f"falcon-training @ {wheel.as_uri()}"
        install = (UV, "pip", "install", "-q", "--python", folder / "bin" / "python")
        run(*install, "-c", ROOT / "constraints.txt", wanted, cwd=self.cwd)

    def run(self, program: str, *arguments: str | Path, succeeds: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in an empty folder."""
        return run(self.folder / "bin" / program, *arguments, cwd=self.cwd, succeeds=succeeds)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel from the sources of the tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run(UV, "build", "-q", "--wheel", "--out-dir", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def environment(wheel: Path, extra: str, folder: Path) -> Environment:
    folder.mkdir(exist_ok=True)
    return Environment(folder / "venv", wheel, extra)


def check_every_program_introduces_itself(bare: Environment) -> None:
    """Run each console script, and the module of the same name, with --help and --version."""
    versions = set()
    for program in PROGRAMS:
        module = program.replace("-", "_")
        for command in ((program,), ("python", "-m", module)):
            help_text = bare.run(*command, "--help").stdout
            assert f"usage: {program}" in help_text
            versions.add(bare.run(*command, "--version").stdout.removeprefix(program).strip())
    assert versions == {PROJECT["version"]}


def missing(bare: Environment, *command: str | Path) -> str:
    """Return what a command without its extra says: one line on stderr, no traceback."""
    done = bare.run(str(command[0]), *command[1:], succeeds=False)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) == 1
    return done.stderr


def test_without_an_extra_a_recording_is_judged_and_what_is_missing_is_named(wheel: Path, tmp_path: Path) -> None:
    bare = environment(wheel, "", tmp_path)
    check_every_program_introduces_itself(bare)
    assert "rank 2 takes 2.9x the healthy compute time" in bare.run("falcon-agent", "replay", RECORDING).stdout
    assert "pip install 'falcon-training[sim]'" in missing(bare, "falcon-sim", SCENARIO)
    for command in ("run", "node"):
        assert "pip install 'falcon-training[agent]'" in missing(bare, "falcon-agent", command)
    assert "pip install 'falcon-training[operator]'" in missing(bare, "falcon-operator")
    assert "pip install 'falcon-training[plot]'" in missing(
        bare, "falcon-agent", "replay", RECORDING, "--plot", tmp_path / "picture.png"
    )


def test_the_extra_sim_runs_a_scenario(wheel: Path, tmp_path: Path) -> None:
    bare = environment(wheel, "sim", tmp_path)
    check_every_program_introduces_itself(bare)
    table = bare.run("falcon-sim", SCENARIO, "--json", tmp_path / "report.json").stdout
    assert "straggler" in table
    assert json.loads((tmp_path / "report.json").read_text())["scenario"] == "straggler"
    assert "pip install 'falcon-training[plot]'" in missing(bare, "falcon-sim", SCENARIO, "--plot", tmp_path / "p.svg")


def test_the_extra_plot_draws_a_recording(wheel: Path, tmp_path: Path) -> None:
    bare = environment(wheel, "plot", tmp_path)
    check_every_program_introduces_itself(bare)
    picture = tmp_path / "picture.png"
    bare.run("falcon-agent", "replay", RECORDING, "--plot", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("extra", "client"), [("etcd", "Client"), ("gateway", "AgentClient")])
def test_a_clients_extra_imports_it(wheel: Path, tmp_path: Path, extra: str, client: str) -> None:
    bare = environment(wheel, extra, tmp_path)
    program = f"import falcon_{extra}; print(falcon_{extra}.{client}.__name__)"
    assert bare.run("python", "-c", program).stdout.strip() == client


def test_the_extra_errors_classifies_a_line(wheel: Path, tmp_path: Path) -> None:
    bare = environment(wheel, "errors", tmp_path)
    program = (
        "from falcon_core.errors.classify import Classifier; from falcon_core.errors.table import shipped;"
        " print(Classifier(shipped()).line('NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.').name)"
    )
    assert bare.run("python", "-c", program).stdout.strip() == "GpuLost"


@pytest.mark.parametrize(
    ("extra", "missing"),
    [("operator", "FALCON_GATEWAYS"), ("anomaly", "FALCON_GATEWAYS"), ("agent", "FALCON_AGENT_CONFIG")],
)
def test_a_service_starts_as_far_as_its_settings(wheel: Path, tmp_path: Path, extra: str, missing: str) -> None:
    bare = environment(wheel, extra, tmp_path)
    check_every_program_introduces_itself(bare)
    done = bare.run(f"falcon-{extra}", succeeds=False)
    assert done.returncode == 78  # EX_CONFIG: every import was found, the settings were read
    assert missing in done.stderr
    assert "Traceback" not in done.stderr


def test_the_extra_nvml_brings_the_bindings(wheel: Path, tmp_path: Path) -> None:
    bare = environment(wheel, "nvml", tmp_path)
    program = "import pynvml; print(pynvml.nvmlDeviceGetCount.__name__)"
    assert bare.run("python", "-c", program).stdout.strip() == "nvmlDeviceGetCount"


def test_every_extra_is_tried_here() -> None:
    tried = {"errors", "sim", "plot", "etcd", "gateway", "operator", "anomaly", "agent", "nvml"}
    assert set(PROJECT["optional-dependencies"]) == tried
