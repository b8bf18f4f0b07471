"""Score points by their local outlier factor: how much sparser is a point's surroundings than its neighbours'?

Breunig et al. 2000, as scikit-learn computes it, with ``n_neighbors`` = ``neighbours``. Points are vectors of all
metrics at one time (TRANSOM §IV-B 3).
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

Floats = npt.NDArray[np.float64]

NEIGHBOURS: Final = 20
_LEAST: Final = 1e-10  # keeps the density of points that coincide finite


class Reference(msgspec.Struct, frozen=True, eq=False):
    """Points of healthy windows, and what the score of others needs of them."""

    tree: cKDTree
    neighbours: int
    reaches: Floats  # the distance to each point's last neighbour [point]
    densities: Floats  # local reachability density [point]
    factors: Floats  # each point's own outlier factor [point]


def reference(points: Floats, neighbours: int = NEIGHBOURS) -> Reference:
    """Return the reference of ``points`` [point, metric], of which there are at least two."""
    tree = cKDTree(points)
    count = min(neighbours, len(points) - 1)
    distances, nearest = tree.query(points, k=count + 1)
    distances, nearest = _without_itself(distances, nearest)
    reaches = distances[:, -1]
    densities = _densities(distances, nearest, reaches)
    factors = (densities[nearest] / densities[:, None]).mean(axis=1)
    return Reference(tree, count, reaches, densities, factors)


def outlier_factors(known: Reference, points: Floats) -> Floats:
    """Return the local outlier factor of each new point [point]: about 1 where it is like the reference."""
    distances, nearest = known.tree.query(points, k=known.neighbours)
    distances, nearest = distances.reshape(len(points), -1), nearest.reshape(len(points), -1)
    densities = _densities(distances, nearest, known.reaches)
    return np.asarray((known.densities[nearest] / densities[:, None]).mean(axis=1))


def _without_itself(distances: Floats, nearest: npt.NDArray[np.intp]) -> tuple[Floats, npt.NDArray[np.intp]]:
    """Drop each point from its own neighbours; where others coincide with it, it may not be the first."""
    own = np.arange(len(nearest))[:, None]
    found = nearest == own
    # Among more copies than neighbours the point itself is not in the list: then the last one goes.
    found[~found.any(axis=1), -1] = True
    kept = ~found
    shape = (len(nearest), nearest.shape[1] - 1)
    return distances[kept].reshape(shape), nearest[kept].reshape(shape)


def _densities(distances: Floats, nearest: npt.NDArray[np.intp], reaches: Floats) -> Floats:
    reachable = np.maximum(distances, reaches[nearest])
    return np.asarray(1.0 / (reachable.mean(axis=1) + _LEAST))
