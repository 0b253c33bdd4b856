"""The NuGraph3 with weights per plane, put together from nugraph 24.7.1's own blocks.

This development version between 24.4 and 24.7 was never released. Its message-passing block is
that of 24.7.1, and so are the ``HeteroConv`` modules of PyTorch Geometric around the blocks.
"""

from __future__ import annotations

from typing import Any

import torch
from nugraph.models.nugraph3.core import NuGraphBlock
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv

PLANES = ("u", "v", "y")


class PerPlaneNuGraph3(nn.Module):
    """The network in its default widths; its state dict has the names of the real checkpoints."""

    def __init__(
        self, semantic_classes: int = 7, event_classes: int = 4, iterations: int = 5
    ) -> None:
        super().__init__()
        p, n, i = 128, 32, 32
        self.iterations = iterations
        self.encoder: Any = nn.ModuleDict(
            {"lins": nn.ModuleDict({plane: nn.Linear(4, p) for plane in PLANES})}
        )
        self.core_net: Any = nn.ModuleDict(
            {
                "plane_net": HeteroConv({(q, "plane", q): NuGraphBlock(p, p, p) for q in PLANES}),
                "plane_to_nexus": HeteroConv(
                    {(q, "nexus", "sp"): NuGraphBlock(p, n, n) for q in PLANES}, aggr="cat"
                ),
                "nexus_to_interaction": HeteroConv(
                    {("sp", "in", "evt"): NuGraphBlock(3 * n, i, i)}
                ),
                "interaction_to_nexus": HeteroConv(
                    {("evt", "owns", "sp"): NuGraphBlock(i, 3 * n, n)}
                ),
                "nexus_to_plane": HeteroConv(
                    {("sp", "nexus", q): NuGraphBlock(n, p, p) for q in PLANES}
                ),
            }
        )

        def head(layer: Any) -> nn.ModuleDict:
            return nn.ModuleDict({"net": layer})

        self.semantic_decoder: Any = head(
            nn.ModuleDict({q: nn.Linear(p, semantic_classes) for q in PLANES})
        )
        self.filter_decoder: Any = head(
            nn.ModuleDict({q: nn.Sequential(nn.Linear(p, 1), nn.Sigmoid()) for q in PLANES})
        )
        self.event_decoder: Any = head(nn.Linear(i, event_classes))
        self.vertex_decoder: Any = head(nn.Linear(i, 3))

    def answer(self, data: HeteroData) -> dict[str, Tensor]:
        """Answer one event; changes the graph object, as nugraph's own models do."""
        for plane in PLANES:
            data[plane].x = self.encoder["lins"][plane](data[plane].x)
        dtype = data["u"].x.dtype
        data["sp"].x = torch.zeros(data["sp"].num_nodes, 32, dtype=dtype)
        data["evt"].x = torch.zeros(1, 32, dtype=dtype)
        for _ in range(self.iterations):
            for net in self.core_net.values():
                data.set_value_dict("x", net(data.x_dict, data.edge_index_dict))
        outputs = {}
        for plane in PLANES:
            x = data[plane].x
            outputs[f"x_semantic_{plane}"] = self.semantic_decoder["net"][plane](x)
            outputs[f"x_filter_{plane}"] = self.filter_decoder["net"][plane](x)[:, 0]
        outputs["e_evt"] = self.event_decoder["net"](data["evt"].x)
        outputs["v_evt"] = self.vertex_decoder["net"](data["evt"].x)
        return outputs
