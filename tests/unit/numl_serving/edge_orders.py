"""Graphs that differ only in what rounding makes of them."""

from typing import Any

import torch

ORDERS = 8
"""In so many orders of its edges nugraph answers a graph, where one does not tell its rounding."""


def reordered(graph: Any, order: int) -> Any:
    """Return a copy of a graph of PyTorch Geometric with its edges in another order; 0: its own.

    To nugraph it is the same graph, but its sums over edges round otherwise.
    """
    copy = graph.clone()
    if order:
        random = torch.Generator().manual_seed(order)
        for edges in copy.edge_stores:
            shuffled = torch.randperm(edges.edge_index.shape[1], generator=random)
            edges.edge_index = edges.edge_index[:, shuffled]
    return copy
