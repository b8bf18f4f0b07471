"""Every class leads to the repair that ``repair_table`` names: a rank's last words are a real line of the class.

A class that needs no other repair is restarted. Jobs of one pod and one rank, without PyTorch, fail with the lines
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
from falcon_core.errors.table import ErrorClass, Source, shipped
from falcon_core.recovery.repairs.repair import Repair
from falcon_core.recovery.repairs.repair_table import repair_of
from falcon_core.recovery.repairs.restart_budget import COUNTED_RESTART
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


def repair(kind: ErrorClass) -> Repair:
    """Return the repair that the table names for the class; a restart where no rank's output is of the class."""
    return COUNTED_RESTART if only_a_node_says(kind) else repair_of(kind)


def classes(chosen: Callable[[Repair], bool]) -> list[ErrorClass]:
    return [kind for kind in shipped().classes if chosen(repair(kind))]


def restarts(known: Repair) -> bool:
    return not (known.ends_job or known.leaves_node)


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
    """Check that each failure was reported as its class; one that only a node says, as none of a node's."""
    return all((name != kind.name) == only_a_node_says(kind) for (name, _), kind in zip(done, group, strict=True))


@pytest.mark.long  # test_fail_stop and its campaign show a class of each step
def test_a_class_that_no_restart_mends_fails_the_job_in_one_attempt_with_its_remedy(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    wrong = []
    for job, (kind,) in run_all(namespace, start, [[kind] for kind in classes(lambda known: known.ends_job)]):
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
    for job, group in run_all(namespace, start, list(several(classes(lambda known: known.leaves_node), MOVES_A_JOB))):
        done = attempts(job)
        nodes_used = [*(node for _, _, node in done), job.nodes()[0]]
        expected = [(kind.name, repair(kind).attempt) for kind in group]
        if [(name, step) for name, step, _ in done] != expected or len(set(nodes_used)) != len(nodes_used):
            wrong.append((expected, done, nodes_used, job.status()["counters"]))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.long  # likewise
def test_every_other_class_restarts_the_processes_in_their_pod(
    nodes: None, namespace: Kubectl, start: Callable[[Json], Job]
) -> None:
    wrong = []
    for job, group in run_all(namespace, start, list(several(classes(restarts), RESTARTS_A_JOB))):
        status = job.status()
        done = [(name, step) for name, step, _ in attempts(job)]
        expected = [(kind.name, repair(kind).attempt) for kind in group]
        moved = status["counters"] != {"restarts": len(group), "replacements": 0}
        if moved or [step for _, step in done] != [step for _, step in expected] or not told(done, group):
            wrong.append((expected, done, status["state"], status["counters"]))
    assert not wrong, "\n".join(map(str, wrong))


def test_the_steps_cover_the_whole_table() -> None:
    ending, leaving = classes(lambda known: known.ends_job), classes(lambda known: known.leaves_node)
    assert len(ending) > 10
    assert len(leaving) > 15
    assert len(ending) + len(leaving) + len(classes(restarts)) == len(shipped().classes)
