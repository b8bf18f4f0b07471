"""Let a data-parallel job go on, in the same step and in living processes, when a rank is lost or joins.

``group`` is what a script uses, ``launch`` starts its ranks; ``roster`` and ``dealing`` decide, ``meeting`` and
``attendance`` connect the processes, ``process_group`` and ``gradients`` exchange.
"""

from __future__ import annotations

from falcon_torch.elastic.group import Group

__all__ = ["Group"]
