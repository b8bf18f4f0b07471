"""Keep one job for all faults of a module: it is started once, and healed before each fault."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dev.install import heal_nodes, wait_for_spare
from dev.kubectl import Kubectl
from tests.e2e.campaigns import stage as stages
from tests.e2e.campaigns.stage import Stage
from tests.machine import REST, seconds_for_the_machine, wait_for_quiet


@pytest.fixture(scope="module")
def campaign(cluster: Kubectl) -> Iterator[Kubectl]:
    """Yield kubectl in a namespace of the campaign's own, on a cluster without faults and with a spare."""
    wait_for_quiet(min(60.0, seconds_for_the_machine()))
    heal_nodes(cluster)
    wait_for_spare(cluster)
    with stages.namespace(cluster) as kubectl:
        yield kubectl
    heal_nodes(cluster)
    REST.begin()


@pytest.fixture(scope="module")
def stage(campaign: Kubectl) -> Iterator[Stage]:
    """Yield a job that trains, and that takes failures one after the other."""
    with stages.shared_folder() as folder, stages.stage(campaign, folder) as found:
        yield found
