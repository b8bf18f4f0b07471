"""DistributedDataParallel: all-reduces of buckets while gradients are computed. argv: ITERATIONS FILE (job.py)."""

from __future__ import annotations

from collections.abc import Callable

import job
import torch


def ddp() -> Callable[[], None]:
    return job.training(torch.nn.parallel.DistributedDataParallel(job.network(), bucket_cap_mb=0.3))


job.train(ddp)
