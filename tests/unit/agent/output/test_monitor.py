"""The agent reads the ranks' output while they live: what is new, in its budget, whatever stands in the folder."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from falcon_agent.launch.output_file import OutputReader
from falcon_agent.output import monitor as outputs
from falcon_agent.output.monitor import KEPT_BYTES, PIECE_BYTES, Output
from falcon_core.anomalies.output_numbers import usable_metrics
from falcon_core.errors.classify import Classifier
from falcon_core.errors.judge import ErrorRules, shipped_judge, usable_judge
from falcon_core.errors.table import Domain, JobRule, shipped
from falcon_core.model import Severity
from falcon_core.wire.launcher.launch import LaunchRank, LaunchStatus
from falcon_core.wire.launcher.output import CAPACITY, HEADER_BYTES, READABLE, OutputFormatError
from falcon_core.wire.reporting.anomalies import OutputMetric
from tests.unit.agent.outputs import OutputWriter

ECC = b"CUDA error: uncorrectable ECC error encountered\n"
TRACEBACK = b'Traceback (most recent call last):\n  File "/job/train.py", line 4, in main\n    f()\nValueError: bad\n'


def status(*local_ranks: int, generation: int = 1, state: str = "Running") -> LaunchStatus:
    ranks = [
        LaunchRank(local_rank=number, rank=number, pid=100 + number, state="Running", started_unix_ns=1)
        for number in local_ranks or (0,)
    ]
    return LaunchStatus(generation=generation, dead_below=generation, state=state, ranks=ranks)  # type: ignore[arg-type]


def texts(output: Output, generation: int = 1) -> dict[int, list[str]]:
    return {each.local_rank: [one.text for one in each.printed] for each in output.reports(generation)}


def test_a_new_error_is_news_and_a_healthy_line_is_none(tmp_path: Path) -> None:
    writers = [OutputWriter(tmp_path, number) for number in range(2)]
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    assert not output.look(status(0, 1), 1.0)
    writers[0].write(b"step 1 loss 2.3\n")
    assert not output.look(status(0, 1), 2.0)
    assert output.reports(1) == []
    before = time.time_ns()
    writers[1].write(TRACEBACK)
    assert output.look(status(0, 1), 3.0)
    assert texts(output) == {1: ["ValueError: bad (train.py:4 in main)"]}
    ((printed,),) = [each.printed for each in output.reports(1)]
    assert before <= printed.unix_ns <= time.time_ns()
    writers[1].write(TRACEBACK)
    assert not output.look(status(0, 1), 4.0), "a repetition"
    assert output.reports(1)[0].more == 1


def test_the_classifier_is_made_when_processes_start_rather_than_with_their_first_error(tmp_path: Path) -> None:
    built: list[Classifier] = []

    def classifier() -> Classifier:
        built.append(shipped_judge().classifier)
        return built[-1]

    output = Output(tmp_path, classifier)
    output.look(status(state="Idle"), 1.0)
    assert built == [], "a spare's agent, or one whose job has yet to start, needs no table"
    output.look(status(), 2.0)
    assert len(built) == 1


def test_rules_of_the_job_that_come_later_are_used_from_then_on(tmp_path: Path) -> None:
    rules = ErrorRules(rules=(JobRule(pattern="lost its firmware", severity=Severity.SEV1, domain=Domain.GPU),))
    known = [ErrorRules()]
    writer, output = OutputWriter(tmp_path), Output(tmp_path, lambda: usable_judge(known[-1]).classifier)
    writer.write(b"accelerator 3 lost its firmware\n")
    assert not output.look(status(), 1.0)
    known.append(rules)
    writer.write(b"accelerator 4 lost its firmware\n")
    assert output.look(status(), 2.0)
    assert texts(output) == {0: ["accelerator 4 lost its firmware"]}


def test_each_generation_begins_anew(tmp_path: Path) -> None:
    OutputWriter(tmp_path).write(ECC)
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    assert output.look(status(), 1.0)
    stopping = status(generation=2, state="Stopping")
    assert not output.look(stopping, 2.0)
    assert output.reports(2) == [], "of the generation before"
    OutputWriter(tmp_path, generation=2).write(b"hello\n")
    assert not output.look(status(generation=2), 3.0)
    assert output.reports(2) == []


def test_a_line_that_does_not_end_is_judged_after_a_second(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path)
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    writer.write(ECC.rstrip())
    assert not output.look(status(), 1.0)
    assert not output.look(status(), 1.5)
    assert output.look(status(), 2.0)


def test_what_an_earlier_agent_may_have_read_is_dated_at_the_files_beginning(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path)
    made = time.time_ns()
    line = b"x" * 1023 + b"\n"  # long, so that one look's time is enough for all of them on any machine
    writer.write(line * (2 * READABLE // len(line)) + ECC)
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    output.look(status(), 1.0)
    (report,) = output.reports(1)
    assert report.printed[0].unix_ns <= made
    assert report.unread_bytes == 0, "no flood of this life"


def test_a_flood_is_sampled_and_its_end_is_read(tmp_path: Path) -> None:
    """Every word a new one: text that is dearest to judge."""
    words = re.findall(r"[a-z]{3,}", " ".join(pattern for rule in shipped().rules for pattern in rule.patterns))
    chance = random.Random(1)
    costly = "".join(" ".join(chance.choices(words, k=15)) + "\n" for _ in range(9000)).encode()
    assert len(costly) > READABLE // 2
    writer = OutputWriter(tmp_path)
    output = Output(tmp_path, lambda: Classifier(shipped()))
    output.look(status(), 0.0)
    used = time.thread_time()
    now = 0.0
    for _ in range(5):
        writer.write(costly)
        now += 0.2
        output.look(status(), now)
    assert time.thread_time() - used < 2.0, "some seconds of a core without a bound"
    writer.write(b"step 7\n" * (KEPT_BYTES // 14) + TRACEBACK)
    while "ValueError: bad (train.py:4 in main)" not in texts(output).get(0, []):
        now += 1.0
        output.look(status(), now)
        assert now < 1000
    assert output.reports(1)[0].unread_bytes > 0


def test_no_ranks_flood_hides_anothers_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "MOST_SECONDS", 1e-9)  # of work in a look: a piece of the first rank's text
    writers = [OutputWriter(tmp_path, number) for number in range(2)]
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    output.look(status(0, 1), 0.0)
    writers[1].write(ECC)
    for number in range(1, 4):
        writers[0].write(b"step\n" * PIECE_BYTES)
        output.look(status(0, 1), float(number))
    assert texts(output)[1] == [ECC.decode().strip()]


def test_a_reader_knows_what_it_lost(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path)
    reader = OutputReader(writer.path, 1)
    writer.write(b"0123456789" * 10)
    assert reader.read(50).data == b"0123456789" * 5
    assert reader.read(50).follows
    lines = b"".join(b"%09d\n" % number for number in range(CAPACITY // 4))
    writer.write(lines)
    piece = reader.read(CAPACITY)
    assert not piece.follows
    assert piece.data == lines[-READABLE:]
    assert reader.unread_bytes == len(lines) - READABLE
    assert reader.read(10).follows
    assert reader.left() == 0
    writer.write(b"abcdef")
    reader.skip_to(2)
    assert reader.read(10) == (b"ef", pytest.approx(time.time_ns(), abs=10**10), False)
    assert reader.tail(3) == b"def"
    reader.close()


@pytest.mark.parametrize("hostile", ["nothing", "FIFO", "link", "folder", "sparse", "short", "other generation"])
def test_what_is_no_output_is_refused_and_the_others_are_read(tmp_path: Path, hostile: str) -> None:
    good, bad = OutputWriter(tmp_path, 1), OutputWriter(tmp_path, 0)
    if hostile != "other generation":
        bad.path.unlink()
    match hostile:
        case "FIFO":
            os.mkfifo(bad.path)
        case "link":
            bad.path.symlink_to(good.path)
        case "folder":
            bad.path.mkdir()
        case "sparse":
            bad.path.touch()
            os.truncate(bad.path, 1 << 40)
        case "short":
            bad.path.write_bytes(b"FALCOPUT")
        case _:
            OutputWriter(tmp_path, 0, generation=9) if hostile == "other generation" else None
    good.write(ECC)
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    assert output.look(status(0, 1), 1.0)
    assert list(texts(output)) == [1]


@pytest.mark.parametrize("hostile", ["cut short", "header gone", "runs backwards", "another's header", "far ahead"])
def test_a_file_that_changes_under_the_reader_is_left(tmp_path: Path, hostile: str) -> None:
    good, bad = OutputWriter(tmp_path, 1), OutputWriter(tmp_path, 0)
    output = Output(tmp_path, lambda: shipped_judge().classifier)
    bad.write(ECC)
    output.look(status(0, 1), 1.0)
    with bad.path.open("r+b") as file:
        match hostile:
            case "cut short":
                file.truncate(HEADER_BYTES)
            case "header gone":
                file.truncate(0)
            case "runs backwards":
                os.pwrite(file.fileno(), (3).to_bytes(8, "little"), 64)
            case "another's header":
                os.pwrite(file.fileno(), (7).to_bytes(8, "little"), 32)
            case _:
                os.pwrite(file.fileno(), ((1 << 64) - 1).to_bytes(8, "little"), 64)
    if hostile == "cut short":
        os.pwrite(file := os.open(bad.path, os.O_WRONLY), (500).to_bytes(8, "little"), 64)
        os.close(file)
    good.write(TRACEBACK)
    assert output.look(status(0, 1), 2.0)
    assert texts(output) == {0: [ECC.decode().strip()], 1: ["ValueError: bad (train.py:4 in main)"]}
    output.look(status(0, 1), 3.0)


def test_a_file_of_another_version_is_named(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path)
    with writer.path.open("r+b") as file:
        os.pwrite(file.fileno(), (2).to_bytes(4, "little"), 8)
    with pytest.raises(OutputFormatError, match="use the launcher of this agent's release"):
        OutputReader(writer.path, 1)


def test_a_loss_that_stays_nan_is_news_with_the_iteration_and_only_of_its_generation(tmp_path: Path) -> None:
    writer = OutputWriter(tmp_path, 1)
    OutputWriter(tmp_path, 0)
    own = usable_metrics([OutputMetric(name="reward", pattern="reward ([a-z0-9.]+)")])
    output = Output(tmp_path, lambda: shipped_judge().classifier, metrics=lambda: own, iterations=lambda: {0: 3, 1: 41})
    output.look(status(0, 1), 1.0)
    writer.write(b"step 41 loss nan\nreward nan\n")
    assert not output.look(status(0, 1), 2.0)
    writer.write(b"step 42 loss nan\nreward 2\n")
    assert output.look(status(0, 1), 3.0)
    (found,) = output.not_finite(1)[1]
    assert (found.name, found.line, found.iteration) == ("loss", b"step 41 loss nan", 41)
    assert not output.not_finite(1).get(0)
    assert output.not_finite(2) == {}
