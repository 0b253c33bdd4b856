"""The NuGraph3 with weights per plane, put together from nugraph 24.7.1's own blocks.

This development version between 24.4 and 24.7 was never released. Its message-passing block is
that of 24.7.1, and so are the ``HeteroConv`` modules of PyTorch Geometric around the blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from nugraph.models.nugraph3.core import NuGraphBlock
from torch import Tensor, nn
from torch_geometric.data import HeteroData
from torch_geometric.nn import HeteroConv


class PerPlaneNuGraph3(nn.Module):
    """The network; its state dict has the names of the real checkpoints.

    Args:
        in_features: Features that a hit is given.
        planar_features: Features of a hit.
        nexus_features: Features that a spacepoint receives from each plane.
        interaction_features: Features of the event.
        planes: Names of the planes.
        semantic_classes: Names of the hit classes.
        event_classes: Names of the event classes.
        num_iters: Number of message-passing iterations.
    """

    def __init__(
        self,
        in_features: int = 4,
        planar_features: int = 128,
        nexus_features: int = 32,
        interaction_features: int = 32,
        planes: Sequence[str] = ("u", "v", "y"),
        semantic_classes: Sequence[str] = tuple("abcdefg"),
        event_classes: Sequence[str] = tuple("abcd"),
        num_iters: int = 5,
    ) -> None:
        super().__init__()
        p, n, i = planar_features, nexus_features, interaction_features
        m = len(planes) * n
        self.planes, self.num_iters, self.widths = planes, num_iters, (n, i)
        self.encoder: Any = nn.ModuleDict(
            {"lins": nn.ModuleDict({plane: nn.Linear(in_features, p) for plane in planes})}
        )
        self.core_net: Any = nn.ModuleDict(
            {
                "plane_net": HeteroConv({(q, "plane", q): NuGraphBlock(p, p, p) for q in planes}),
                "plane_to_nexus": HeteroConv(
                    {(q, "nexus", "sp"): NuGraphBlock(p, n, n) for q in planes}, aggr="cat"
                ),
                "nexus_to_interaction": HeteroConv({("sp", "in", "evt"): NuGraphBlock(m, i, i)}),
                "interaction_to_nexus": HeteroConv({("evt", "owns", "sp"): NuGraphBlock(i, m, n)}),
                "nexus_to_plane": HeteroConv(
                    {("sp", "nexus", q): NuGraphBlock(n, p, p) for q in planes}
                ),
            }
        )

        def head(layer: Any) -> nn.ModuleDict:
            return nn.ModuleDict({"net": layer})

        self.semantic_decoder: Any = head(
            nn.ModuleDict({q: nn.Linear(p, len(semantic_classes)) for q in planes})
        )
        self.filter_decoder: Any = head(
            nn.ModuleDict({q: nn.Sequential(nn.Linear(p, 1), nn.Sigmoid()) for q in planes})
        )
        self.event_decoder: Any = head(nn.Linear(i, len(event_classes)))
        self.vertex_decoder: Any = head(nn.Linear(i, 3))

    def answer(self, data: HeteroData) -> dict[str, Tensor]:
        """Answer one event; changes the graph object, as nugraph's own models do."""
        nexus, interaction = self.widths
        for plane in self.planes:
            data[plane].x = self.encoder["lins"][plane](data[plane].x)
        dtype = data[self.planes[0]].x.dtype
        data["sp"].x = torch.zeros(data["sp"].num_nodes, nexus, dtype=dtype)
        data["evt"].x = torch.zeros(1, interaction, dtype=dtype)
        for _ in range(self.num_iters):
            for net in self.core_net.values():
                data.set_value_dict("x", net(data.x_dict, data.edge_index_dict))
        outputs = {}
        for plane in self.planes:
            x = data[plane].x
            outputs[f"x_semantic_{plane}"] = self.semantic_decoder["net"][plane](x)
            outputs[f"x_filter_{plane}"] = self.filter_decoder["net"][plane](x)[:, 0]
        outputs["e_evt"] = self.event_decoder["net"](data["evt"].x)
        outputs["v_evt"] = self.vertex_decoder["net"](data["evt"].x)
        return outputs
