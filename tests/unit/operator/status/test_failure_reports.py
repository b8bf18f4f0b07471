"""A look that cannot carry out what it wants says so on the job: each call fails in turn, in each way."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from falcon_operator.api.common import Condition
from falcon_operator.base.ports import Conflict, Foreign, NotFound, PodView, Rejected, Unavailable
from falcon_operator.job.reconciler import JobReconciler
from falcon_operator.status.failures import EVENT_SECONDS, FAILED, REPEAT_SECONDS, REWORD_SECONDS, failure_of
from tests.world.running import Metrics, operator, reasons, run, shown, state, trained
from tests.world.world import World

SHOWN_SECONDS = 10.0
TOKEN = "hf_abcdefghijklmnopqrstuvwxyz"
ERRORS: dict[str, Exception] = {
    "Refused": Rejected("admission webhook says no"),
    "Conflict": Conflict("the object has been modified"),
    "NotFound": NotFound("namespaces ml not found"),
    "ApiServerError": Unavailable("POST /api: HTTP 500: failed calling webhook", 500),
    "ApiServerUnreachable": Unavailable("POST /api: Connection refused"),
    "InternalError": TypeError("'NoneType' object is not iterable"),
}
AT_THE_START = ("dry_run_pod", "apply_service", "apply_secret", "write_run", "create_pod")
WHILE_IT_RUNS = ("list_pods", "nodes", "list_pools", "get_run")


def breaks(world: World, calls: str, error: Exception) -> Callable[[], None]:
    """Let a call of the API server fail from now on. Return how to repair it."""
    kube: Any = world.kube
    real = getattr(kube, calls)

    async def fail(*_: Any, **__: Any) -> Any:
        raise error

    setattr(kube, calls, fail)
    return lambda: setattr(kube, calls, real)


async def looks(world: World, reconciler: JobReconciler, seconds: float) -> None:
    """Let time pass. Like the queue, repeat what fails, whatever it raises."""
    end = world.clock.seconds + seconds
    while world.clock.seconds < end:
        world.tick(0.5)
        with contextlib.suppress(Exception):  # the queue logs it
            await reconciler.reconcile("ml", "gpt2")


def failed(world: World) -> Condition | None:
    found = shown(world, FAILED)
    return found if found is not None and found.status == "True" else None


@pytest.mark.parametrize("reason", ERRORS)
@pytest.mark.parametrize("call", AT_THE_START)
async def test_what_fails_at_the_start_is_quoted_and_cleared(call: str, reason: str) -> None:
    world = World()
    reconciler = operator(world)
    repair = breaks(world, call, ERRORS[reason])
    await looks(world, reconciler, SHOWN_SECONDS)
    refuses_the_spec = (call, reason) == ("dry_run_pod", "Refused")  # the condition Accepted quotes it
    quoted = shown(world, "Accepted") if refuses_the_spec else failed(world)
    assert quoted is not None
    assert str(ERRORS[reason]) in quoted.message
    assert world.status.state == ("Starting" if world.made and call == "create_pod" else "Pending")
    assert reasons(world).count("NotAccepted" if refuses_the_spec else FAILED) == 1
    repair()
    await run(world, lambda _: reconciler, lambda w: w.status.state == "Running" and failed(w) is None)


@pytest.mark.parametrize("reason", ERRORS)
@pytest.mark.parametrize("call", WHILE_IT_RUNS)
async def test_what_fails_while_it_runs_is_quoted_and_the_last_good_state_stays(call: str, reason: str) -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    before = world.status
    repair = breaks(world, call, ERRORS[reason])
    await looks(world, reconciler, SHOWN_SECONDS)
    quoted = failed(world)
    assert quoted is not None
    assert quoted.reason == reason
    assert str(ERRORS[reason]) in quoted.message
    rest = [condition for condition in world.status.conditions if condition.type != FAILED]
    assert (world.status.state, world.status.summary, rest) == ("Running", before.summary, before.conditions)
    repair()
    await looks(world, reconciler, 1.0)
    cleared = shown(world, FAILED)
    assert cleared is not None
    assert (cleared.status, cleared.reason) == ("False", "Reconciled")


@pytest.mark.parametrize("reason", ["Refused", "ApiServerError", "ApiServerUnreachable", "InternalError"])
async def test_a_replacement_that_cannot_be_made_is_quoted(reason: str) -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    repair = breaks(world, "create_pod", ERRORS[reason])
    world.kill_node(world.pod_of(0).node)
    await looks(world, reconciler, 60.0)
    quoted = failed(world)
    assert quoted is not None
    assert (quoted.reason, reasons(world).count(FAILED)) == (reason, 1)
    assert "pod gpt2-0-" in quoted.message
    assert str(ERRORS[reason]) in quoted.message
    if reason != "InternalError":
        assert str(ERRORS[reason])[:30] in world.status.summary
    repair()
    await run(world, lambda _: reconciler, state("Running"))
    await looks(world, reconciler, 1.0)
    assert failed(world) is None


async def test_an_outage_of_the_bus_has_words_of_its_own() -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    world.stop_bus()
    await looks(world, reconciler, SHOWN_SECONDS)
    quoted = failed(world)
    assert quoted is not None
    assert quoted.reason == "BusUnavailable"
    assert "neither etcd nor a gateway accepted it" in quoted.message
    world.start_bus()
    await looks(world, reconciler, 1.0)
    assert failed(world) is None


@pytest.mark.parametrize("reason", ["Conflict", "NotFound", "ApiServerError", "ApiServerUnreachable"])
async def test_what_passes_at_once_is_not_shown(reason: str) -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    repair = breaks(world, "nodes", ERRORS[reason])
    await looks(world, reconciler, 1.0)
    repair()
    await looks(world, reconciler, 10.0)
    assert shown(world, FAILED) is None
    assert FAILED not in reasons(world)


async def test_a_failure_that_lasts_costs_few_writes_and_few_events() -> None:
    """Each look has other figures in its error, as request ids and times do."""
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    numbers = iter(range(10_000))
    kube: Any = world.kube

    async def fail() -> Any:
        raise Rejected(f"request {next(numbers)} refused at 12:00:{next(numbers)}")

    kube.nodes = fail
    world.calls = 0
    await looks(world, reconciler, EVENT_SECONDS - 1)
    assert (world.calls, reasons(world).count(FAILED)) == (1, 1)


async def test_a_failure_that_comes_and_goes_costs_few_writes() -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    await reconciler.reconcile("ml", "gpt2")
    events = reasons(world).count(FAILED)
    world.calls, seconds = 0, 60
    for _ in range(seconds):
        repair = breaks(world, "nodes", ERRORS["Refused"])
        await looks(world, reconciler, 0.5)
        repair()
        await looks(world, reconciler, 0.5)
    assert world.calls <= 2 * seconds / REPEAT_SECONDS + 20  # the figures' own writes included
    assert reasons(world).count(FAILED) - events == 1


async def test_other_words_of_one_reason_are_written_now_and_then() -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    breaks(world, "nodes", Rejected("first"))
    await looks(world, reconciler, 1.0)
    breaks(world, "nodes", Rejected("second"))
    await looks(world, reconciler, REWORD_SECONDS / 2)
    quoted = failed(world)
    assert quoted is not None
    assert "first" in quoted.message
    await looks(world, reconciler, REWORD_SECONDS)
    quoted = failed(world)
    assert quoted is not None
    assert "second" in quoted.message


class Unshown(Metrics):
    def __init__(self) -> None:
        super().__init__()
        self.unshown: list[str] = []

    def failure_unshown(self, kind: str) -> None:
        self.unshown.append(kind)


async def test_a_status_that_cannot_be_written_leaves_the_event_and_then_the_metric() -> None:
    world, metrics = World(), Unshown()
    await trained(world)
    reconciler = operator(world, metrics)
    breaks(world, "nodes", ERRORS["Refused"])
    breaks(world, "write_job_status", ERRORS["ApiServerError"])
    await looks(world, reconciler, 5.0)
    assert reasons(world).count(FAILED) == 1
    assert metrics.unshown == []
    kube: Any = world.kube

    async def lost(*_: Any) -> bool:
        return False

    kube.record_event = lost
    breaks(world, "nodes", ERRORS["InternalError"])
    await looks(world, reconciler, 5.0)
    assert set(metrics.unshown) == {"TrainingJob"}


async def test_a_quoted_error_is_bounded_and_without_secrets() -> None:
    world = World()
    reconciler = operator(world)
    breaks(world, "write_run", Rejected(f"denied: --token {TOKEN} \x1b[31m" + "x" * 5000))
    await looks(world, reconciler, 1.0)
    written = str(world.status) + str(world.events)
    quoted = failed(world)
    assert quoted is not None
    assert len(quoted.message) <= 1024
    assert TOKEN not in written
    assert "\x1b" not in written


async def test_an_error_in_one_effect_holds_up_no_other() -> None:
    world = World()
    reconciler = operator(world)
    bus: Any = world.bus
    real = bus.ask_detail

    async def fail(*_: Any) -> None:
        raise ERRORS["InternalError"]

    bus.ask_detail = fail
    await run(world, lambda _: reconciler, state("Running"))
    await looks(world, reconciler, 2.0)
    assert failed(world) is not None
    bus.ask_detail = real
    await looks(world, reconciler, 2.0)
    assert failed(world) is None


# -- names that others have --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["apply_service", "apply_secret"])
async def test_a_name_that_is_taken_is_named_before_any_pod_is_made(call: str) -> None:
    world = World()
    reconciler = operator(world)
    repair = breaks(world, call, Foreign("Service ml/gpt2 exists and is not this job's"))
    await looks(world, reconciler, SHOWN_SECONDS)
    ready = shown(world, "Ready")
    assert ready is not None
    assert (ready.status, ready.reason) == ("False", "NameTaken")
    assert "Service ml/gpt2 exists" in ready.message
    assert world.status.summary.startswith("Service ml/gpt2 exists")
    assert world.made == []
    assert "Secret" not in world.applied
    quoted = failed(world)
    assert quoted is not None
    assert quoted.reason == "NameTaken"
    repair()
    await run(world, lambda _: reconciler, state("Running"))


async def test_a_running_job_whose_name_is_taken_over_goes_on() -> None:
    world = World()
    await trained(world)
    reconciler = operator(world)
    breaks(world, "apply_service", Foreign("Service ml/gpt2 exists and is not this job's"))
    world.kill_node(world.pod_of(0).node)
    await run(
        world, lambda _: reconciler, lambda w: w.status.counters.replacements == 1 and w.status.state == "Running"
    )
    quoted = failed(world)
    assert quoted is not None
    assert quoted.reason == "NameTaken"


async def test_a_run_that_no_operator_has_made_is_named_and_left() -> None:
    world = World()
    mine = {"metadata": {"name": "gpt2", "namespace": "ml", "uid": "theirs", "resourceVersion": "7"}, "spec": {}}
    world.trainingrun = mine
    reconciler = operator(world)
    await looks(world, reconciler, SHOWN_SECONDS)
    assert world.trainingrun is mine
    assert world.made == []
    quoted = failed(world)
    assert quoted is not None
    assert "TrainingRun ml/gpt2 exists, but no operator created it" in quoted.message
    assert world.status.state == "Pending"
    world.trainingrun = None
    await run(world, lambda _: reconciler, state("Running"))


async def test_a_run_that_an_earlier_job_of_the_name_has_left_is_no_obstacle() -> None:
    world = World()
    owner = {"kind": "TrainingJob", "name": "gpt2", "uid": "earlier", "controller": True}
    metadata = {"name": "gpt2", "namespace": "ml", "resourceVersion": "7", "ownerReferences": [owner]}
    world.trainingrun = {"metadata": metadata, "spec": {}}
    await run(world, operator, state("Running"))
    assert shown(world, FAILED) is None


async def test_a_run_whose_owner_reference_was_removed_is_still_the_jobs() -> None:
    world = World()
    await trained(world)
    assert world.trainingrun is not None
    del world.trainingrun["metadata"]["ownerReferences"]
    generation, made = world.generation, list(world.made)
    await looks(world, operator(world), 5.0)
    assert (world.generation, world.made, world.status.state) == (generation, made, "Running")


def test_every_error_has_a_reason_of_its_own() -> None:
    assert [failure_of(error).reason for error in ERRORS.values()] == list(ERRORS)
    assert failure_of(Foreign("x")).reason == "NameTaken"
    assert failure_of(OSError("x")).reason == "BusUnavailable"
    assert failure_of(TimeoutError()).message.endswith("TimeoutError")


# -- pods that wear the job's labels -----------------------------------------------------------------------------------


async def looked_at(world: World, change: Callable[[list[PodView]], list[PodView]]) -> list[str]:
    """Look for a while at pods as ``change`` makes them of the world's. Return the names of the pods deleted."""
    kube: Any = world.kube
    real, deleted = kube.list_pods, []

    async def list_pods(*of: Any) -> list[PodView]:
        return change(await real(*of))

    async def delete_pod(pod: PodView, grace_seconds: int | None = None) -> None:
        deleted.append(pod.name)

    kube.list_pods, kube.delete_pod = list_pods, delete_pod
    await looks(world, operator(world), 20.0)
    return deleted


@pytest.mark.parametrize("owned", [True, False])
async def test_only_a_pod_that_the_job_owns_is_deleted_as_one_that_it_has_left(owned: bool) -> None:
    world = World()
    await trained(world)
    labels = {"falcon.dev/job-uid": "job-uid", "falcon.dev/role": "trainer"}
    copy = PodView(namespace="ml", name="copy", uid="copy", labels=labels, phase="Running", owned=owned)
    assert ("copy" in await looked_at(world, lambda pods: [*pods, copy])) is owned
    assert world.status.state == "Running"


async def test_a_member_whose_owner_reference_was_removed_trains_on() -> None:
    world = World()
    await trained(world)
    generation = world.generation
    bare = await looked_at(world, lambda pods: [msgspec.structs.replace(pod, owned=False) for pod in pods])
    assert (bare, world.generation, world.status.state) == ([], generation, "Running")
