"""Test every link of a communicator in a few rounds (FALCON §4.3).

In one pass each rank takes part in at most one transfer, so that all pairs of a pass run at once and no transfer
disturbs another. A ring of even size needs two passes, an odd one three: the check before a start measures so
(``recovery.preflight.link_test``). A tree, which nothing in production asks for yet, is walked from its root: a rank
that is reached over a link of one pass tests its children in the other two, so a binary tree needs three (FALCON:
four).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

Pair = tuple[int, int]
Pass = list[Pair]


def ring_passes(ranks: Sequence[int]) -> list[Pass]:
    """Order the links (r_i, r_{i+1}) of a ring, the closing link included, in passes of disjoint pairs.

    Two ranks have one link.

    Raises ValueError where a rank appears twice.
    """
    _distinct(ranks)
    count = len(ranks)
    if count < 2:
        return []
    pairs = [(ranks[index], ranks[(index + 1) % count]) for index in range(count if count > 2 else 1)]
    if count % 2 == 0:
        return [links for links in (pairs[0::2], pairs[1::2]) if links]
    return [pairs[0:-1:2], pairs[1:-1:2], pairs[-1:]]


def tree_passes(parents: Sequence[int | None]) -> list[Pass]:
    """Order the links (child, parent) of a tree in passes of disjoint pairs; ``parents[root]`` alone is None.

    Needs as many passes as the busiest rank has links: three at most in a binary tree.
    Raises ValueError where it is not one tree.
    """
    root, children = _children(parents)
    passes: list[Pass] = []
    open_ranks, reached = [(root, -1)], 0  # a rank, and the pass in which its own parent is tested
    while open_ranks:
        rank, taken = open_ranks.pop()
        reached += 1
        numbers = (number for number in itertools.count() if number != taken)
        # A rank can test one link a pass, so its children get different passes, none of them its parent's.
        for child, number in zip(children[rank], numbers, strict=False):
            passes += [[] for _ in range(len(passes), number + 1)]
            passes[number].append((child, rank))
            open_ranks.append((child, number))
    if reached != len(parents):
        raise ValueError("the parents run in a circle")
    return passes


def _children(parents: Sequence[int | None]) -> tuple[int, list[list[int]]]:
    """Return the root and each rank's children; raises ValueError for several roots or an unknown parent."""
    roots = [rank for rank, parent in enumerate(parents) if parent is None]
    if len(roots) != 1:
        raise ValueError(f"{len(roots)} roots: a tree has one")
    children: list[list[int]] = [[] for _ in parents]
    for rank, parent in enumerate(parents):
        if parent is None:
            continue
        if not 0 <= parent < len(parents):
            raise ValueError(f"rank {rank} has the unknown parent {parent}")
        children[parent].append(rank)
    return roots[0], children


def binary_tree(count: int) -> list[int | None]:
    """Return the parents of a heap-shaped binary tree of ``count`` ranks, rank 0 the root."""
    return [None if rank == 0 else (rank - 1) // 2 for rank in range(count)]


def _distinct(ranks: Sequence[int]) -> None:
    if len(set(ranks)) != len(ranks):
        raise ValueError("a rank appears twice in the ring")
