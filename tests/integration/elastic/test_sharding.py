"""A model that ``fully_shard`` has sharded loses ranks, each with its shard, and gets them back.

Whatever happens, losses and parameters are those of one process that computes the same global batches alone. They may
differ by the order of sums alone: in double precision that is 1e-15 of a loss, and grows with the steps.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.integration import forking
from tests.integration.elastic import trainings
from tests.integration.elastic.trainings import Trained

RANKS, STEPS, MICRO_BATCHES = 4, 30, 12
KILLED = -signal.SIGKILL
STATE_LOST = 76  # exit code
pytestmark = pytest.mark.timeout(300)

BEFORE = [{"done": 1}, {"done": 3}, {"done": 2}]
IN_PASSES = [{"gathers": 2}, {"gathers": 11}, {"reduces": 5}]
IN_THE_EXCHANGE = [{"sums": 0}, {"shifts": 0}, {"sums": 1}]  # the batch is counted, copies are made, all have them
AFTER = [{"after": 1}, {"gathers": 0}, {"after": 1}]


def slow(values: Any) -> Any:
    """Return the values of a test's parameter that ``make test-slow`` tries: four ranks import and train for each."""
    return pytest.param(values, marks=pytest.mark.slow)


def train(folder: Path, losses: list[dict[str, int]], *, ranks: int = RANKS, **more: Any) -> Trained:
    logs = folder / f"logs of {ranks}"
    logs.mkdir()
    spec = {"steps": STEPS, "micro_batches": MICRO_BATCHES, "late": False, "reshard": True, "save": -1, "state": ""}
    return trainings.train("shards.py", logs, ranks, losses, **{**spec, **more})


def assert_as_undisturbed(trained: Trained, *, first: int = 0, micro_batches: int = MICRO_BATCHES) -> None:
    for rank in trained.ranks:
        steps = [step for step, _ in rank.of_kind("step")]
        assert steps == list(range(steps[0], steps[0] + len(steps))) if steps else rank.lost_in() is not None
        for step, number, loss in rank.of_kind("micro"):
            assert loss == pytest.approx(trained.reference["losses"][step][number], rel=1e-9)
    for step in range(first, STEPS):
        assert sorted(applied(trained, step, micro_batches)) == list(range(micro_batches)), step
    for (parameters,) in trained.ends():
        assert parameters == pytest.approx(trained.reference["parameters"], rel=1e-9)


def applied(trained: Trained, step: int, micro_batches: int) -> list[int]:
    """Return the micro-batches whose gradients are in a step, as often as they are."""
    living = [number for rank in trained.ranks if rank.lost_in() != step for number in rank.computed(step)]
    if len(living) == micro_batches:
        return living
    # A rank that was lost behind its last micro-batch has left its part to the others.
    lost = [rank for rank in trained.ranks if rank.lost_in() == step]
    return living + [number for rank in lost for of, number in rank.of_kind("pass") if of == step]


@pytest.mark.slow  # one loss and its replacement are shown by the next test, and one place by each that follows
@pytest.mark.parametrize("places", [BEFORE, IN_PASSES, IN_THE_EXCHANGE, AFTER])
def test_ranks_that_are_killed_before_in_and_after_the_exchange_are_replaced(
    tmp_path: Path, places: list[dict[str, int]]
) -> None:
    losses = [{"rank": (1, 3, 0)[index], "step": 4 + 8 * index, **place} for index, place in enumerate(places)]
    trained = train(tmp_path, losses, replace=True)
    assert trained.codes == [KILLED] * 3 + [0] * 4, trained.errors
    assert_as_undisturbed(trained)
    assert len(trained.ends()) == 4
    assert all(step > 0 for step in trained.joined()[4:]), "newcomers begin where the others are"


def test_three_go_on_and_a_newcomer_makes_the_group_whole_again(tmp_path: Path) -> None:
    trained = train(tmp_path, [{"rank": 1, "step": 5, "done": 2}], replace=True, late=True)
    assert trained.codes == [KILLED, 0, 0, 0, 0], trained.errors
    assert_as_undisturbed(trained)
    assert trained.sizes() == [4, 3, 4]
    passes = sum(len(rank.of_kind("pass")) for rank in trained.ranks)
    again = passes - STEPS * MICRO_BATCHES
    assert 0 < again <= MICRO_BATCHES, "the broken step alone is computed again, and none for the newcomer"


@pytest.mark.slow  # fewer ranks are shown by the tests before
def test_one_rank_is_enough_to_finish(tmp_path: Path) -> None:
    """Ranks have unequal numbers of micro-batches, and keep parameters from the forward to the backward pass."""
    losses = [
        {"rank": 2, "step": 5, "reduces": 2},
        {"rank": 0, "step": 12, "sums": 1},
        {"rank": 3, "step": 20, "done": 1},
    ]
    trained = train(tmp_path, losses, micro_batches=10, reshard=False)
    assert trained.codes == [KILLED] * 3 + [0], trained.errors
    assert_as_undisturbed(trained, micro_batches=10)
    assert trained.sizes() == [4, 3, 2, 1]


@pytest.mark.slow  # a loss while a group is made is shown with replicas (test_living)
@pytest.mark.parametrize("place", [{"step": 10, "change": 1}, {"broadcast": 1}])
def test_a_rank_is_lost_while_a_new_group_divides_the_state(tmp_path: Path, place: dict[str, int]) -> None:
    """While the group that leaves rank 1 behind connects, and while its members get the whole tensors."""
    trained = train(tmp_path, [{"rank": 1, "step": 10, "done": 1}, {"rank": 3, **place}], replace=True)
    assert trained.codes == [KILLED] * 2 + [0] * 4, trained.errors
    assert_as_undisturbed(trained)


@pytest.mark.parametrize(
    "places", [slow(({"gathers": 4}, {"sums": 1})), slow(({"reduces": 6}, {"sums": 2})), ({"shifts": 1},)]
)
def test_a_fault_of_the_network_costs_no_rank(tmp_path: Path, places: tuple[dict[str, int], ...]) -> None:
    """A rank loses the result of a call in a pass, of the count, of its copy, and of the last call of a step.

    Where it is the last call the others are a step ahead.
    """
    faults = [{"rank": 1 + index, "step": 4 + 8 * index, **place} for index, place in enumerate(places)]
    trained = train(tmp_path, [], faults=faults)
    assert trained.codes == [0] * 4, trained.errors
    assert_as_undisturbed(trained)
    assert trained.sizes() == [4]
    passes = sum(len(rank.of_kind("pass")) for rank in trained.ranks)
    assert passes <= (STEPS + 2) * MICRO_BATCHES, "what all have the copies of is not computed again"


def test_the_loss_of_a_rank_and_of_its_copy_ends_all(tmp_path: Path) -> None:
    trained = train(tmp_path, [{"rank": 1, "step": 5, "done": 2}, {"rank": 2, "step": 5, "done": 2}])
    assert trained.codes == [KILLED, KILLED, STATE_LOST, STATE_LOST]
    assert "begin from a checkpoint" in trained.errors


def test_a_saved_state_is_loaded_by_another_number_of_ranks(tmp_path: Path) -> None:
    trained = train(tmp_path, [{"rank": 2, "step": 8, "reduces": 1}], save=12)
    assert trained.codes == [KILLED, 0, 0, 0], trained.errors
    assert_as_undisturbed(trained)
    loaded = train(tmp_path, [], ranks=3, state=str(tmp_path / "state"))
    assert loaded.codes == [0, 0, 0], loaded.errors
    assert loaded.joined() == [13, 13, 13]
    assert_as_undisturbed(loaded, first=13)


@pytest.mark.slow  # test_data_parallel shows the way of a group without a launcher
def test_without_the_launcher_the_group_is_that_of_the_environment(tmp_path: Path) -> None:
    trained = train(tmp_path, [], ranks=2, plain=True, micro_batches=9)
    assert trained.codes == [0, 0], trained.errors
    assert_as_undisturbed(trained, micro_batches=9)


@pytest.mark.parametrize(
    ("case", "says"),
    [
        ("sharded", "Accepted"),
        ("not sharded", "is not sharded as a whole: call fully_shard(model, mesh=mesh)"),
        ("two meshes", "is not sharded on the mesh that build() gets"),
        ("mixed precision", "fully_shard of the layer 0 has a mixed precision policy"),
        ("resharded to some", "has a number of ranks in reshard_after_forward: pass True or False"),
        ("a hook", "has a hook that runs when a gradient is accumulated: let the group step the optimizer"),
        ("another optimizer", "the optimizer has parameters that are not the model's"),
        ("no optimizer", "build() has to return the model, its optimizer, and what else has a state, in a tuple"),
        ("other passes", "let each micro-batch run one forward and one backward pass through the same modules"),
        ("few micro-batches", "micro_batches=1: each of 2 ranks needs at least one"),
        ("in Group", "is sharded (fully_shard): pass a function that builds it to falcon_torch.elastic.sharding"),
    ],
)
def test_what_the_group_would_not_do_is_refused(case: str, says: str) -> None:
    program = Path(__file__).parent / "programs" / "refused_shards.py"
    environment = {"PYTHONPATH": str(trainings.ROOT / "agent"), "FALCON_ELASTIC": ""}
    ranks = 4 if case == "resharded to some" else 2
    ended = forking.run([str(program), case], [{}] * ranks, environment, timeout_seconds=100)
    assert ended.codes == [0] * ranks, ended.stderr[0]
    assert says in ended.stdout[0]
