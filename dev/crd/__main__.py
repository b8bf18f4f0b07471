"""Write ``crds/trainingruns.falcon.dev.yaml`` anew: ``python -m dev.crd``."""

from __future__ import annotations

from dev.crd.trainingrun import PATH, render
from falcon_operator.api.trainingrun import TrainingRunSpec

PATH.write_text(render(TrainingRunSpec), encoding="utf-8")
