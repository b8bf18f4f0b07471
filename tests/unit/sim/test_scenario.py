"""Scenario files: what is unknown or impossible is refused by the field's name."""

from __future__ import annotations

from pathlib import Path

import pytest

from falcon_core.signals.rank.profiling import SAMPLE_EVERY
from falcon_sim.__main__ import main
from falcon_sim.job.scenario import ScenarioError, Watch, load, parse

EXAMPLES = Path(__file__).parents[3] / "examples" / "simulation"


def test_the_device_times_as_many_iterations_as_an_agent_asks_for() -> None:
    """The figure stands there twice: an old core, which has none, is played beside today's (evaluation/real_jobs)."""
    assert Watch().sample_every == SAMPLE_EVERY


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_examples_are_valid(path: Path) -> None:
    assert load(path).name == path.stem


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("name: x\njobb: {}", "jobb"),
        ("name: x\njob: {microbatch: 4}", "microbatch"),
        ("name: x\njob: {microbatches: many}", r"\$\.job\.microbatches"),
        ("name: x\njob: {parallelism: {data: 6, expert: 4}}", r"job\.parallelism\.expert 4 does not divide data 6"),
        ("name: x\njob: {parallelism: {data: 3}, procs_per_node: 2}", r"job\.procs_per_node 2 does not divide"),
        ("name: x\njob: {procs_per_node: 1, forward_seconds: [1, 2]}", r"job\.forward_seconds has 2 stages of 1"),
        ("name: x\njob: {procs_per_node: 1, backward_seconds: 0}", r"job\.backward_seconds"),
        ("name: x\nrun: {}\njob: {procs_per_node: 1}", "run: give iterations or seconds"),
        (
            "name: x\njob: {procs_per_node: 1}\n"
            "faults: {slow: [{at_seconds: 1, duration_seconds: 1, factor: 2, node: 5}]}",
            r"faults\.slow\[0\]\.node is 5",
        ),
        (
            "name: x\njob: {procs_per_node: 1}\nfaults: {random_stop: [{node_hours_between: 1, severity: SEV1,"
            " repair_seconds: {constant: 1, exponential: 2}}]}",
            r"faults\.random_stop\[0\]\.repair_seconds: give exactly one",
        ),
        (
            "name: x\njob: {parallelism: {pipeline: 4}, procs_per_node: 4, microbatches: 6,"
            " schedule: Interleaved, chunks: 2}",
            r"job\.microbatches: 6 micro-batches are no multiple of 4 stages",
        ),
        ("name: x\njob: {procs_per_node: 1}\ndetection: {sample_every: 0}", "sample_every must be at least 1"),
        ("name: x\njob: {procs_per_node: 1}\ndetection: {delay_seconds: -1}", "delay_seconds not negative"),
        ("name: x\n  y: [", "not YAML"),
    ],
)
def test_what_cannot_run_is_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(ScenarioError, match=named):
        parse(text)


def test_the_command_says_so_and_ends_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\nseeds: 3\n")
    assert main([str(path)]) == 2
    assert "seeds" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--json", "missing/out.json"], "--json missing/out.json: the folder missing does not exist"),
        (["--plot", "missing/out.png"], "--plot missing/out.png: the folder missing does not exist"),
        (["--plot", "out.gif"], "--plot out.gif: the name must end in .png or .svg"),
    ],
)
def test_results_that_could_not_be_written_are_refused_before_the_run(
    options: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(EXAMPLES / "week.yaml"), *options]) == 2
    refused = capsys.readouterr()
    assert named in refused.err
    assert not refused.out
