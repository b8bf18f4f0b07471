"""Test what measures faults on the real cluster, as far as no cluster is needed: its options, tables and page."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import pytest

from benchmarks.ready.parts import Parts
from evaluation import harness
from evaluation.harness import Evaluation, Table, run
from tests.e2e.campaigns import failures
from tests.e2e.campaigns.measure import fail_slow, fail_stop, lost_nodes, restarts
from tests.e2e.campaigns.measure.__main__ import MEASURE
from tests.e2e.campaigns.measure.limited import limited
from tests.e2e.campaigns.outcome import Outcome as FailStop
from tests.e2e.campaigns.slow_faults import KINDS
from tests.e2e.campaigns.slow_outcome import Outcome as Slow

Asked = dict[str, argparse.Namespace]  # the options that each table was made with


@pytest.fixture
def asked() -> Asked:
    """Return the tables that were asked for; each test begins with none."""
    return {}


@pytest.fixture
def measure(asked: Asked, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Evaluation:
    """Return the measurement with tables that need no cluster, and with a copy of its page."""

    def stub(name: str) -> harness.Maker:
        def make(options: argparse.Namespace) -> Table:
            asked[name] = options
            return Table(f"| newly made: {name} |")

        return make

    page = tmp_path / "RESULTS.md"
    page.write_text(MEASURE.page.read_text())
    monkeypatch.setattr(Evaluation, "page", property(lambda _: page))
    return msgspec.structs.replace(MEASURE, tables={name: stub(name) for name in MEASURE.tables})


def test_help_names_the_command_and_every_table(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        run(MEASURE, ["--help"])
    assert ended.value.code == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "python -m tests.e2e.campaigns.measure" in said
    assert all(name in said for name in MEASURE.tables)


def test_options_reach_the_tables_that_they_belong_to(measure: Evaluation, asked: Asked, tmp_path: Path) -> None:
    words = ["--only", "fail-slow,restarts,fail-stop", "--kind", "a process", "--runs", "6", "--standby", "Imports"]
    words += ["--campaign", "4", "--seed", "9", "--keep", str(tmp_path / "kept")]
    assert run(measure, words) == 0
    assert list(asked) == ["fail-slow", "restarts", "fail-stop"]
    options = asked["fail-slow"]
    assert [kind.name for kind in fail_slow.chosen(options)] == ["a process to 30 %"]
    assert restarts.runs_of(options) == 6
    assert options.standby == ["Imports"]
    assert fail_stop.size_of(options) == fail_stop.Size(repeats=3, campaign=4)
    assert (options.seed, options.keep, options.layout) == (9, tmp_path / "kept", None)


def test_a_check_makes_what_has_limits_at_the_reduced_size(measure: Evaluation, asked: Asked) -> None:
    assert run(measure, ["--check"]) == 0
    assert list(asked) == ["fail-stop", "fail-slow", "shares", "exchange", "restarts", "lost-nodes"]
    options = asked["fail-stop"]
    assert fail_stop.size_of(options) == fail_stop.ROUGH
    assert restarts.runs_of(options) == restarts.ROUGH_RUNS
    assert fail_slow.chosen(options) == [kind for kind in KINDS if kind.in_check]


def test_a_full_run_has_a_place_in_the_page_for_every_table(measure: Evaluation, asked: Asked) -> None:
    assert run(measure, ["--full", "--note", "a test beside it"]) == 0
    assert list(asked) == list(MEASURE.tables)
    page = measure.page.read_text()
    for name in MEASURE.tables:
        place = page.partition(f"<!-- {name} -->")[2].partition(f"<!-- end of {name} -->")[0]
        assert f"| newly made: {name} |" in place
        assert "a test beside it" in " ".join(place.split())
    assert fail_slow.chosen(asked["fail-slow"]) == list(KINDS)
    assert fail_stop.size_of(asked["fail-stop"]) == fail_stop.FULL


def test_what_an_ended_run_has_kept_is_not_measured_again(tmp_path: Path) -> None:
    def never() -> Slow:
        raise AssertionError("measured again")

    slow = Slow(kind="a process to 30 %", healthy=0.1, slow=0.4, after=0.1, named=3.0, acted=9.0, standstill=5.0)
    Parts(tmp_path / "kept").of("a process to 30 %, 0", Slow, lambda: slow)
    again = Parts(tmp_path / "kept")
    assert "a process to 30 %, 0" in again
    assert "a process to 30 %, 1" not in again
    assert again.of("a process to 30 %, 0", Slow, never) == slow


def test_slowdowns_are_told_by_kind_and_what_was_not_as_expected_fails_a_check() -> None:
    well = Slow(kind="a", healthy=0.1, slow=0.5, after=0.1, named=3.0, acted=9.0, standstill=5.0, actions=["SwapNodes"])
    left_alone = Slow(kind="b", healthy=0.1, slow=0.2, problems=["not named: node-b; said: []"])
    made = limited(fail_slow.table([well, left_alone]), [], ["b: not named: node-b; said: []"])
    assert "| a | 1 | 1 | 3.00 s | 9.00 s | SwapNodes | 0.10 s, 0.50 s, 0.10 s | 100 % | 5.00 s |" in made.text
    assert "| b | 1 | 0 | – | – | nothing | 0.10 s, 0.20 s, – | – | – |" in made.text
    assert "- b: not named: node-b; said: []" in made.text
    assert [measure.kept for measure in made.measures] == [False]
    assert all(measure.kept for measure in limited(fail_slow.table([well]), []).measures)


def test_failures_are_told_beside_their_limits_and_one_never_known_falls_short() -> None:
    def killed(known: float | None) -> FailStop:
        return FailStop(name=failures.KILLED.name, ranks=(1,), nodes=("node-a",), at=0.0, known=known, resumed=5.0)

    seen = fail_stop.report(fail_stop.Run([killed(0.1)], [killed(0.2)], []), seed=9)
    assert "| rank killed (SIGKILL): known, worst | 0.2 s | 0.5 s | yes |" in seen.text
    assert "### The campaign, seed 9" in seen.text
    assert fail_stop.WELL in seen.text
    assert all(measure.kept for measure in seen.measures)
    never = fail_stop.report(fail_stop.Run([killed(0.1), killed(None)], [], ["the loss of 1 steps differs"]), seed=9)
    assert fail_stop.WELL not in never.text
    assert "- the loss of 1 steps differs" in never.text
    short = {measure.what for measure in never.measures if not measure.kept}
    median, worst = (f"{failures.KILLED.name}: known, {what}" for what in ("median of 2", "worst"))
    assert short == {median, worst, "what was not as expected"}


def test_a_lost_node_has_a_limit_where_a_pod_stands_by() -> None:
    found = [lost_nodes.Lost(0, [9.0, 9.0], []), lost_nodes.Lost(1, [4.0, 7.0], [])]
    [limit] = lost_nodes.limits(found)
    assert (limit.measured, limit.most, limit.kept) == (5.5, 6.0, True)


def test_a_restart_has_the_limit_of_its_standby() -> None:
    kept = [limit.kept for limit in restarts.limits([restarts.Restarts(each, [1.0], []) for each in restarts.STANDBYS])]
    assert dict(zip(restarts.STANDBYS, kept, strict=True)) == {"None": True, "Imports": True, "Processes": False}
