"""The control file holds a pause of a large job's pod."""

from __future__ import annotations

import pytest

from falcon_core.wire.launcher.control import CONTROL_BYTES, MAX_ENTRIES, Mode, Target, pack_control
from falcon_core.wire.ring import Traffic, counter_key

RANKS = 8
GROUPS = 16


@pytest.mark.parametrize("experts", [128, 512])
def test_a_pause_of_a_mixture_of_experts_has_a_target_for_each_peer_of_each_rank(experts: int) -> None:
    keys = [counter_key(comm, Traffic.COLLECTIVE) for comm in range(1, GROUPS + 1)]
    keys += [counter_key(1, traffic, peer) for traffic in (Traffic.SEND, Traffic.RECV) for peer in range(experts)]
    targets = tuple(Target(rank + 1, key, 7) for rank in range(RANKS) for key in keys)
    assert len(pack_control(Mode.TRACK, 1, armed=True, targets=targets)) == CONTROL_BYTES


def test_more_targets_than_there_is_room_for_are_refused() -> None:
    with pytest.raises(ValueError, match=f"holds {MAX_ENTRIES}"):
        pack_control(Mode.TRACK, 1, targets=(Target(1, 1, 1),) * (MAX_ENTRIES + 1))
