"""The network, as trained by train.py and served by model.py."""

import torch
from torch import Tensor
from torch.nn.functional import dropout, normalize
from torch_geometric.nn import SAGEConv

WORDS, SIZE = 1433, 64


class GraphSAGE(torch.nn.Module):
    """Two layers of GraphSAGE (Hamilton et al., 2017, arXiv:1706.02216)."""

    def __init__(self, hidden: int = 64, drop: float = 0.5) -> None:
        super().__init__()
        self.drop = drop
        self.first = SAGEConv(WORDS, hidden)
        self.second = SAGEConv(hidden, SIZE)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        """Return vectors [papers, 64] for ``x`` [papers, 1433] and ``edges`` [2, edges].

        They have length 1; the larger the product of two, the likelier is a citation.
        """
        x = x / x.sum(dim=1, keepdim=True).clamp(min=1)
        x = dropout(x, self.drop, self.training)
        x = self.first(x, edges).relu()
        x = dropout(x, self.drop, self.training)
        return normalize(self.second(x, edges))


def nearest(vectors: Tensor, edges: Tensor, count: int = 10, at_once: int = 512) -> Tensor:
    """Return, int32 [papers, count], which others each paper is likeliest to cite; -1: none left.

    Papers that it is linked to already are left out.
    """
    papers = len(vectors)
    found = torch.full((papers, count), -1, dtype=torch.int32)
    linked = torch.cat([edges, edges.flip(0), torch.arange(papers).repeat(2, 1)], dim=1)
    for start in range(0, papers, at_once):
        some = vectors[start : start + at_once] @ vectors.T
        row, column = linked[:, (linked[0] >= start) & (linked[0] < start + at_once)]
        some[row - start, column] = -torch.inf
        best, number = some.topk(min(count, papers), dim=1)
        number[best == -torch.inf] = -1
        found[start : start + at_once, : number.shape[1]] = number.int()
    return found
