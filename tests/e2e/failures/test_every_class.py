"""Every class of the table leads to the step that the ladder says: a rank's last words are a real line of the class.

A class that names no step of its own is restarted. Jobs of one pod and one rank, without PyTorch, fail with the lines
one after the other; those of hardware move to another node each time, so that two a job fit on three workers.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from dev.kubectl import Json, Kubectl
from falcon_core.errors.judge import shipped_judge
from falcon_core.errors.table import Domain, ErrorClass, Source, shipped
from falcon_core.model import Severity
from tests.e2e.jobs import Job, condition, training_job, with_script
from tests.unit.errors.lines import corpus

BUDGET: Final = {"restarts": 100, "window": "1h"}
CORPUS: Final = corpus()
RESTARTS_A_JOB: Final = 6  # the next one is held back for 31 s
MOVES_A_JOB: Final = 2
AT_ONCE: Final = 12  # jobs: more agents than that start slowly on two cores


def line_of(kind: ErrorClass) -> str:
    """Return a line of the class that a program may print; the first of all where only a node says such lines."""
    lines = [line for name, line in CORPUS if name == kind.name]
    classifier = shipped_judge().classifier
    said = (line for line in lines if (found := classifier.line(line, Source.OUTPUT)) and found.name == kind.name)
    return next(said, lines[0])


def only_a_node_says(kind: ErrorClass) -> bool:
    """Check whether the rules of the class read no rank's output: what a node's condition means is no rank's word."""
    rules = [rule for rule in shipped().rules if rule.error_class == kind.name]
    return all(rule.sources and Source.OUTPUT not in rule.sources for rule in rules)


def step_of(kind: ErrorClass) -> str:
    """Return the step that the ladder says for one failure of a job with nodes to spare."""
    if only_a_node_says(kind):
        return "Restart"
    if kind.permanent:
        return "Fails"
    if kind.severity is Severity.SEV1 and kind.domain in (Domain.GPU, Domain.LINK, Domain.NODE):
        return "Restart" if kind.consequence else "Replace"
    if kind.transient and not kind.consequence and kind.domain in (Domain.STORAGE, Domain.LINK):
        return "Transient"  # a restart that does not count
    return "Restart"


def with_step(*steps: str) -> list[ErrorClass]:
    return [kind for kind in shipped().classes if step_of(kind) in steps]


def several(kinds: list[ErrorClass], size: int) -> Iterator[list[ErrorClass]]:
    rest = iter(kinds)
    while some := list(itertools.islice(rest, size)):
        yield some


def failing_job(namespace: Kubectl, kinds: list[ErrorClass]) -> Json:
    """Return a job that fails once with each class, and succeeds then."""
    name = kinds[0].name.lower()
    manifest = training_job(name, steps=1, replicas=1, spec={"recovery": BUDGET})
    manifest = with_script(namespace, manifest, "last_words.py")
    [trainer] = manifest["spec"]["template"]["spec"]["containers"]
    trainer["env"].append({"name": "LINES", "value": json.dumps([line_of(kind) for kind in kinds])})
    return manifest


def run_all(
    namespace: Kubectl, start: Callable[[Json], Job], groups: list[list[ErrorClass]]
) -> Iterator[tuple[Job, list[ErrorClass]]]:
    """Run a job a group, some at a time; yield each one that is over."""
    for some in several(groups, AT_ONCE):
        running = [(start(failing_job(namespace, group)), group) for group in some]
        for job, group in running:
            job.wait("the job is over", lambda s: s.get("state") in ("Succeeded", "Failed"), 300)
            yield job, group
            job.delete()


def attempts(job: Job) -> list[tuple[str, str, str]]:
    """Return class, kind and node of what the operator has decided, oldest first."""
    made = job.run()["recovery"]["attempts"]
    return [(entry.get("errorClass", ""), entry["kind"], entry["node"]) for entry in made]


def told(done: list[tuple[str, str]], group: list[ErrorClass]) -> bool:
    """Check that each failure was told as its class; one that only a node says, as none of a node's."""
    return all((name != kind.name) == only_a_node_says(kind) for (name, _), kind in zip(done, group, strict=True))


@pytest.mark.long  # test_error_classes shows a class of each kind
def test_a_class_that_no_restart_mends_fails_the_job_in_one_attempt_with_its_remedy(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    wrong = []
    for job, (kind,) in run_all(namespace, start, [[kind] for kind in with_step("Fails")]):
        status = job.status()
        message = condition(status, "Failed").get("message", "")
        if status["state"] != "Failed" or status["counters"]["restarts"] or kind.remedy not in message:
            wrong.append((kind.name, status["state"], status["counters"], message))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.long  # likewise
def test_a_class_of_broken_hardware_leaves_the_node_at_once(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    wrong = []
    for job, group in run_all(namespace, start, list(several(with_step("Replace"), MOVES_A_JOB))):
        done = attempts(job)
        nodes_used = [*(node for _, _, node in done), job.nodes()[0]]
        expected = [(kind.name, "Replace") for kind in group]
        if [(name, step) for name, step, _ in done] != expected or len(set(nodes_used)) != len(nodes_used):
            wrong.append((expected, done, nodes_used, job.status()["counters"]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.long  # likewise
def test_every_other_class_restarts_the_processes_in_their_pod(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    wrong = []
    for job, group in run_all(namespace, start, list(several(with_step("Restart", "Transient"), RESTARTS_A_JOB))):
        status = job.status()
        done = [(name, step) for name, step, _ in attempts(job)]
        expected = [(kind.name, step_of(kind)) for kind in group]
        moved = status["counters"] != {"restarts": len(group), "replacements": 0}
        if moved or [step for _, step in done] != [step for _, step in expected] or not told(done, group):
            wrong.append((expected, done, status["state"], status["counters"]))
    assert not wrong, "\n".join(map(str, wrong))


def test_the_steps_cover_the_whole_table() -> None:
    assert {step_of(kind) for kind in shipped().classes} == {"Fails", "Replace", "Restart", "Transient"}
    assert len(with_step("Replace")) > 15
    assert len(with_step("Fails")) > 10
