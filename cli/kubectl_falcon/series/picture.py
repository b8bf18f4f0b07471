"""Draw ``kubectl falcon check --metrics --png FILE``: the heat maps by matplotlib (extra ``plot``)."""

from __future__ import annotations

import datetime as dt
import math
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from falcon_core.text import clip
from kubectl_falcon.objects import Job
from kubectl_falcon.series.answer import GAP, Answer, Map
from kubectl_falcon.words import stamp

MOST = 4.0  # the multiple at which the colour ends


def draw(job: Job, found: Answer, path: Path) -> None:
    """Write the picture, a map below the other. Raises OSError."""
    maps = [each for each in found.maps if each.cells and each.cells[0]]
    heights = [max(1.0, 0.22 * len(each.ranks)) for each in maps] or [1.0]
    figure = Figure(figsize=(11.0, 1.6 + sum(heights) + 0.7 * len(heights)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(clip(f"{job.namespace}/{job.name} until {stamp(found.at)} UTC: {found.result}", 130), fontsize=10)
    axes = figure.subplots(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    if not maps:
        axes[0].set_axis_off()
    # Without a map there is an empty picture.
    drawn = [_draw(axis, each, found) for axis, each in zip(axes, maps, strict=False)]
    if drawn:
        axes[len(drawn) - 1].set_xlabel("UTC; grey: nothing read, or no training")
        figure.colorbar(drawn[0], ax=list(axes), label="multiple of what healthy windows show", extend="max")
    figure.savefig(path, dpi=110, format="png")


def _draw(axis: Any, shown: Map, found: Answer) -> Any:
    """Draw one map; return its image."""
    cells = [[math.nan if cell == GAP else cell for cell in row] for row in shown.cells]
    end = found.at / 86_400  # matplotlib's dates are days since 1970
    begin = end - len(cells[0]) * max(found.column_seconds, 1.0) / 86_400
    image = axis.imshow(
        cells,
        aspect="auto",
        interpolation="nearest",
        cmap="inferno_r",
        vmin=0.0,
        vmax=MOST,
        extent=(begin, end, len(cells) - 0.5, -0.5),
    )
    axis.set_facecolor("0.85")
    axis.set_title(shown.metric, fontsize=9, loc="left", parse_math=False)
    axis.set_yticks(range(len(cells)), [f"rank {rank}" for rank in shown.ranks], fontsize=7)
    axis.xaxis_date(dt.UTC)
    return image
