"""What lies outside the job is away: when that is believed, how the waits grow, and when they end."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from falcon_core.recovery.failstop import outages, restart_ladder
from falcon_core.recovery.model.actions import GiveUp, Restart
from falcon_core.recovery.model.failure import Outage
from falcon_core.recovery.model.observation import Look, Observation
from falcon_core.recovery.model.policy import Policy, Repeated
from falcon_core.recovery.model.state import RecoveryState
from falcon_core.recovery.model.step import Step
from tests.unit.recovery.seen import NOW, POLICY, ended, replace, seen

NO_FOLDER = "FileNotFoundError: [Errno 2] No such file or directory: '/shared/data' (train.py:20 in load)"
DISK_FULL = "OSError: [Errno 28] No space left on device: '/shared/step-500' (train.py:90 in save)"
FRESH = RecoveryState()


def failed(words: str, *, iterations: int = 0, generation: int = 1, now: float = NOW) -> Observation:
    """Return a look at a job whose three nodes failed with the same words."""
    end = {**ended(exit_code=1, at=now - 0.1), "last_words": words, "iterations": iterations}
    obs = seen(ranks=dict.fromkeys(range(3), end), generation=generation)
    return replace(obs, now=now)


def outage_of(taken: Step) -> Outage:
    assert taken.state.habits.outage is not None
    return taken.state.habits.outage


def waited_out(policy: Policy, words: str = NO_FOLDER, fails_after: float = 3.0) -> tuple[list[float], Step]:
    """Return the waits of a job [s] that fails at each start, and the step that ends it."""
    state, now, waits = FRESH, NOW, list[float]()
    for generation in range(1, 1000):
        taken = restart_ladder.step(state, Look(failed(words, generation=generation, now=now), policy))
        if taken.commands:
            return waits, taken
        assert taken.state.stop is not None
        assert taken.state.stop.acts_at is not None
        at = taken.state.stop.acts_at
        waits.append(at - now)
        again = restart_ladder.step(taken.state, Look(failed(words, generation=generation, now=at), policy))
        assert again.commands == [Restart()]
        state, now = again.state, at + fails_after
    raise AssertionError("it waits for ever")


def test_the_waits_grow_and_the_job_ends_after_its_time() -> None:
    waits, end = waited_out(POLICY)
    assert waits[:11] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 300.0, 300.0]
    (command,) = end.commands
    assert isinstance(command, GiveUp)
    assert (command.reason, command.waits) == ("Outage", False)
    assert f"after {len(waits)} restarts within 30 min" in command.message
    assert end.state.attempts == [], "no start counts"


@given(outage_seconds=st.floats(1.0, 5000.0), fails_after=st.floats(0.5, 600.0))
def test_it_ends_with_the_first_try_that_fails_after_its_time(outage_seconds: float, fails_after: float) -> None:
    policy = replace(POLICY, repeated=Repeated(suspends=True, outage_seconds=outage_seconds))
    waits, end = waited_out(policy, fails_after=fails_after)
    total = sum(waits) + fails_after * len(waits)
    assert outage_seconds <= total + 1e-6
    assert total - fails_after <= outage_seconds + 1e-6, "no try begins later"
    assert max(waits) <= outages.LONGEST_WAIT_SECONDS + 1e-6
    (command,) = end.commands
    assert isinstance(command, GiveUp)
    assert command.waits


def test_a_job_of_one_node_has_nobody_to_compare_with() -> None:
    obs = failed(NO_FOLDER)
    alone = replace(obs, members=[replace(member, node="node-0") for member in obs.members])
    (command,) = restart_ladder.step(FRESH, Look(alone, POLICY)).commands
    assert isinstance(command, GiveUp)
    assert command.reason == "RecoveryExhausted"


def test_a_failure_at_the_same_iteration_after_a_resume_goes_on_with_the_outage() -> None:
    """As of a disk that is full: each resume trains up to the next checkpoint."""
    first = restart_ladder.step(FRESH, Look(failed(DISK_FULL, iterations=500), POLICY))
    later = failed(DISK_FULL, iterations=500, generation=2, now=NOW + 1300)
    second = restart_ladder.step(replace(first.state, stop=None), Look(later, POLICY))
    assert (outage_of(second).since, outage_of(second).tries) == (NOW, 1)
    further = failed(DISK_FULL, iterations=1500, generation=3, now=NOW + 2600)
    third = restart_ladder.step(replace(second.state, stop=None), Look(further, POLICY))
    assert (outage_of(third).since, outage_of(third).tries) == (NOW + 2600, 0), "the job has come further"
    assert third.commands == []


def test_a_job_that_has_trained_further_since_waits_anew_at_the_same_iteration_of_a_later_generation() -> None:
    """Each generation saves first at the same iteration: a second outage of a moment must not end the job."""
    first = restart_ladder.step(FRESH, Look(failed(DISK_FULL, iterations=500), POLICY))
    well = seen(ranks={rank: {"iterations": 40_000} for rank in range(3)}, generation=2)
    trained = restart_ladder.step(first.state, Look(replace(well, now=NOW + 32_000), POLICY))
    assert trained.state.habits.outage is None
    later = failed(DISK_FULL, iterations=500, generation=3, now=NOW + 33_000)
    second = restart_ladder.step(trained.state, Look(later, POLICY))
    assert (second.commands, outage_of(second).since) == ([], NOW + 33_000)


def test_what_was_long_ago_is_no_part_of_an_outage() -> None:
    first = restart_ladder.step(FRESH, Look(failed(NO_FOLDER), POLICY))
    later = failed(NO_FOLDER, generation=2, now=NOW + 86_400)
    second = restart_ladder.step(replace(first.state, stop=None), Look(later, POLICY))
    assert outage_of(second).since == NOW + 86_400


def test_failures_within_minutes_are_one_outage_unless_the_job_comes_further() -> None:
    state = FRESH
    for number, iterations in enumerate([40, 17, 9, 30]):
        obs = failed(DISK_FULL, iterations=iterations, generation=number + 1, now=NOW + 60 * number)
        taken = restart_ladder.step(replace(state, stop=None), Look(obs, POLICY))
        state = taken.state
    assert (outage_of(taken).since, outage_of(taken).tries) == (NOW, 3)


def untracked(ran_seconds: float, *, now: float, generation: int) -> Observation:
    """Return a look at the same failure of a job whose iterations no agent sees."""
    obs = replace(failed(NO_FOLDER, generation=generation, now=now), running_seconds=ran_seconds)
    ranks = [replace(rank, sent=replace(rank.sent, tracking="NoRing")) for rank in obs.ranks]
    return replace(obs, ranks=ranks)


def test_a_second_outage_of_a_moment_does_not_end_a_job_whose_iterations_nobody_sees() -> None:
    first = restart_ladder.step(FRESH, Look(untracked(5000.0, now=NOW, generation=1), POLICY))
    later = untracked(1900.0, now=NOW + 1903, generation=2)
    second = restart_ladder.step(replace(first.state, stop=None), Look(later, POLICY))
    assert (second.commands, outage_of(second).since, outage_of(second).tries) == ([], NOW + 1903, 0)


def test_starts_that_fail_after_the_same_time_are_one_outage_of_such_a_job() -> None:
    """It reads for seven minutes before it misses the folder."""
    state = FRESH
    for number, ran in enumerate([5000.0, 420.0, 430.0, 410.0]):
        obs = untracked(ran, now=NOW + 450 * number, generation=number + 1)
        taken = restart_ladder.step(replace(state, stop=None), Look(obs, POLICY))
        state = taken.state
    assert (outage_of(taken).since, outage_of(taken).tries) == (NOW + 450, 2)


def test_an_operator_whose_clock_is_behind_does_not_wait_for_another_ones_time() -> None:
    first = restart_ladder.step(FRESH, Look(failed(NO_FOLDER), POLICY))
    behind = failed(NO_FOLDER, now=NOW - 3600)
    assert restart_ladder.step(first.state, Look(behind, POLICY)).commands == [Restart()]
