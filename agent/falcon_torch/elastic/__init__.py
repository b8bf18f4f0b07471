"""Let a data-parallel job go on, in the same step and in living processes, when a rank is lost or joins.

``group`` is what a script uses: a ``member`` of the job's group. ``launch`` starts the ranks; ``roster`` and
``dealing`` decide, ``meeting`` and ``attendance`` connect the processes, ``process_group`` and ``gradients`` exchange,
``member_state`` is what a newcomer gets, ``data_parallel`` keeps DistributedDataParallel from exchanging.
"""

from __future__ import annotations

from falcon_torch.elastic.group import Group
from falcon_torch.elastic.process_group import init_process_group

__all__ = ["Group", "init_process_group"]
