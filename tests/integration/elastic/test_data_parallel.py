"""A script with DistributedDataParallel loses ranks and gets them back: its losses are those of an undisturbed run.

The reference is DistributedDataParallel's own exchange, in as many ranks, none of which is lost. Each rank accumulates
the gradients of four micro-batches with ``no_sync``.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration import forking
from tests.integration.elastic import trainings
from tests.integration.elastic.trainings import MICRO_BATCHES, Trained, assert_each_once

RANKS = 3
PER_RANK = MICRO_BATCHES // RANKS
KILLED = -signal.SIGKILL
pytestmark = pytest.mark.timeout(300)

BEFORE = [{"done": 1}, {"done": PER_RANK}, {"done": 2}]
IN = [{"sums": 0}, {"sums": 2}, {"sums": 4}]  # the count of micro-batches, and four segments of the gradient
AFTER = [{"after": 1}, {"stepped": 1}, {"after": 1}]

TOO_MANY = (
    "DistributedDataParallel, which would exchange too: "
    "let one module hold all that is trained, wrap it, and wrap nothing else"
)
SPARSE = "sparse gradients, which the group cannot exchange: make it with sparse=False"


def train(folder: Path, losses: list[dict[str, int]], **more: Any) -> Trained:
    logs = folder / "logs"
    logs.mkdir()
    spec = {"per_rank": PER_RANK, "late": False, "wrapper": {}, "reducer": "ddp_optimizer", **more}
    return trainings.train("replicas.py", logs, RANKS, losses, **spec)


def assert_as_undisturbed(trained: Trained, processes: int) -> None:
    assert_each_once(trained, processes)
    for rank in trained.ranks:
        for step, number, loss in rank.of_kind("micro"):
            assert loss == pytest.approx(trained.reference["losses"][step][number], rel=1e-6)
    (parameters, buffers), *others = trained.ends()
    assert parameters == pytest.approx(trained.reference["parameters"], rel=1e-9)
    for other in others:
        assert other == [parameters, buffers], "all ranks have the same state"


@pytest.mark.parametrize(
    "places", [pytest.param(BEFORE, marks=pytest.mark.slow), IN, pytest.param(AFTER, marks=pytest.mark.slow)]
)
def test_ranks_that_are_killed_before_in_and_after_the_exchange_are_replaced(
    tmp_path: Path, places: list[dict[str, int]]
) -> None:
    losses = [{"rank": (1, 2, 0)[index], "step": 5 + 15 * index, **place} for index, place in enumerate(places)]
    trained = train(tmp_path, losses, replace=True)
    assert trained.codes == [KILLED] * 3 + [0] * 3, trained.errors
    assert_as_undisturbed(trained, 3)
    assert all(first > 0 for first in trained.joined()[3:]), "newcomers begin where the others are"


@pytest.mark.parametrize(
    ("place", "more"),
    [
        ({"done": 3}, {"wrapper": {"static_graph": True}}),
        pytest.param({"sums": 1}, {"wrapper": {"find_unused_parameters": True}}, marks=pytest.mark.slow),
        pytest.param({"after": 1}, {"wrapper": {"gradient_as_bucket_view": True}}, marks=pytest.mark.slow),
        ({"done": 1}, {"reducer": "python_reducer"}),
    ],
)
def test_two_go_on_and_a_newcomer_makes_the_group_whole_again(
    tmp_path: Path, place: dict[str, int], more: dict[str, Any]
) -> None:
    """Whatever way of exchanging the wrapper was made for: each makes its calls at other places."""
    trained = train(tmp_path, [{"rank": 1, "step": 5, **place}], replace=True, late=True, **more)
    assert trained.codes == [KILLED, 0, 0, 0], trained.errors
    assert_as_undisturbed(trained, 3)
    assert trained.sizes() == [3, 2, 3]


def test_one_rank_is_enough_to_finish(tmp_path: Path) -> None:
    trained = train(tmp_path, [{"rank": 0, "step": 7, "sums": 2}, {"rank": 2, "step": 31, "done": 1}])
    assert trained.codes == [KILLED, KILLED, 0], trained.errors
    assert_as_undisturbed(trained, 1)


@pytest.mark.parametrize("plain", [False, True])
def test_without_a_loss_the_wrapper_does_what_it_did(tmp_path: Path, plain: bool) -> None:
    """The statistics of layers are the first rank's, and a layer that no rank uses keeps its values."""
    trained = train(tmp_path, [], plain=plain)
    assert trained.codes == [0, 0, 0], trained.errors
    assert_as_undisturbed(trained, 3)
    for _, buffers in trained.ends():
        assert buffers == pytest.approx(trained.reference["buffers"], rel=1e-9)


def test_buffers_that_the_wrapper_leaves_to_each_rank_stay_its_own(tmp_path: Path) -> None:
    trained = train(tmp_path, [], wrapper={"forward_sync_buffers": False})
    assert_each_once(trained, RANKS)
    parameters, buffers = zip(*trained.ends(), strict=True)
    assert parameters[0] == parameters[1] == parameters[2] == pytest.approx(trained.reference["parameters"], rel=1e-9)
    assert len({tuple(each) for each in buffers}) == RANKS


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("a wrapped model", "Accepted"),
        ("a compiled model", "Accepted"),
        ("a plain model", "Accepted"),
        ("another group", "the model's DistributedDataParallel has a process group of its own: leave that out"),
        ("a hook", "has a communication hook: leave that out"),
        ("ignored parameters", "has parameters or buffers that it ignores (0.weight): leave that out"),
        ("two wrappers", "2 modules are in DistributedDataParallel: wrap the whole model once"),
        ("the module alone", "the model is in DistributedDataParallel, which would exchange too: pass the wrapper"),
        ("a wrapper in others", f"others[1] is in {TOO_MANY}"),
        ("a wrapper in a part of others", f"others[0] is in {TOO_MANY}"),
        ("a wrapper in others of a plain model", f"others[0] is in {TOO_MANY}"),
        ("another wrapper", f"another module is in {TOO_MANY}"),
        ("another wrapper that was dropped", "Accepted"),
        ("a sparse embedding", f"the model's layer module.0 has {SPARSE}"),
        ("a sparse bag", f"the model's layer module.0 has {SPARSE}"),
        ("a plain sparse embedding", f"the model has {SPARSE}"),
    ],
)
def test_what_the_group_would_not_do_is_refused(case: str, says: str) -> None:
    program = Path(__file__).parent / "programs" / "refused.py"
    ended = forking.run([str(program), case], [{}], {"PYTHONPATH": str(trainings.ROOT / "agent")}, timeout_seconds=100)
    assert ended.codes == [0], ended.stderr[0]
    assert says in ended.stdout[0]
