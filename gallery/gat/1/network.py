"""The network, as trained by train.py and served by model.py."""

import torch
from torch import Tensor
from torch.nn.functional import dropout, elu
from torch_geometric.nn import GATConv

WORDS, CLASSES = 1433, 7


class GAT(torch.nn.Module):
    """Two layers of graph attention (Velickovic et al., 2018, arXiv:1710.10903)."""

    def __init__(self, hidden: int = 8, heads: int = 8, drop: float = 0.6) -> None:
        super().__init__()
        self.drop = drop
        self.first = GATConv(WORDS, hidden, heads, dropout=drop)
        self.second = GATConv(hidden * heads, CLASSES, heads=1, concat=False, dropout=drop)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return logits [papers, 7] for ``x`` [papers, 1433] and ``edges`` [2, edges]."""
        x = x / x.sum(dim=1, keepdim=True).clamp(min=1)
        x = dropout(x, self.drop, self.training)
        x = elu(self.first(x, edges))
        x = dropout(x, self.drop, self.training)
        return self.second(x, edges)
