"""The folder in memory against a plain file system, as a model: random sequences under a virtual clock.

By hand, 10,000 sequences and more: ``FOLDER_SEQUENCES=5000 pytest … --hypothesis-seed=N``. Seed 40 on commit 34ba6088:
5,000 of one replica, 3,000 of several and 2,000 with planted links, in 200 s on two cores.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.integration.folder.job import Checkpoints, new_job
from tests.integration.folder.saver import CHECKPOINTS, NAMES, Style
from tests.integration.folder.sequences import Action, Play, actions, hostile, options, styles

SEQUENCES = int(os.environ.get("FOLDER_SEQUENCES", "0"))


def sequences(in_ci: int) -> settings:
    """Return the settings of a test with so many sequences, or as many as are asked for, then at random."""
    asked = SEQUENCES > 0
    return settings(
        max_examples=SEQUENCES if asked else in_ci,
        derandomize=not asked,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@sequences(250)
@given(style=styles, sequence=actions, given_options=options)
def test_one_replica(style: Style, sequence: Sequence[Action], given_options: dict[str, str]) -> None:
    with new_job(1, Checkpoints(CHECKPOINTS, NAMES), given_options) as one:
        Play(one, style).run(sequence)


@sequences(170)
@given(replicas=st.integers(2, 3), style=styles, sequence=actions, given_options=options)
def test_several_replicas(
    replicas: int, style: Style, sequence: Sequence[Action], given_options: dict[str, str]
) -> None:
    with new_job(replicas, Checkpoints(CHECKPOINTS, NAMES), given_options) as several:
        Play(several, style).run(sequence)


@sequences(80)
@given(replicas=st.integers(1, 2), style=styles, sequence=hostile, given_options=options)
def test_planted_links(replicas: int, style: Style, sequence: Sequence[Action], given_options: dict[str, str]) -> None:
    with new_job(replicas, Checkpoints(CHECKPOINTS, NAMES), given_options) as attacked:
        Play(attacked, style).run(sequence)
