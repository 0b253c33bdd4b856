#!/usr/bin/env python3
"""Train the network to tell citations of Cora from other pairs, and measure it beside baselines.

    python3 gallery/graphsage/train.py

Takes two minutes of one core. PyTorch Geometric downloads Cora, unless ``--data`` already has
it. Runs in the kit's full environment (``numlkit prepare --full``), and makes it if need be.
"""

import argparse
import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent

if find_spec("torch_geometric") is None:
    sys.path.insert(0, str(HERE.parents[1]))
    from deploy.host.bootstrap import ensure_kit

    ensure_kit()
    from scripts.environments import continue_in_full

    continue_in_full()
sys.path.insert(0, str(HERE / "1"))

import torch
from network import GraphSAGE, nearest
from safetensors.torch import save_file
from split import found, split
from torch import Tensor
from torch.nn.functional import cross_entropy, normalize
from torch_geometric.datasets import Planetoid
from torch_geometric.utils import degree

EPOCHS, SHARPNESS = 60, 10


def main() -> None:
    """Train, print which share of hidden citations is found, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cache = Path.home() / ".cache" / "numlkit" / "planetoid"
    parser.add_argument("--data", type=Path, default=cache, help="Planetoid's folder (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE / "1", help="where the weights go")
    options = parser.parse_args()
    cora = Planetoid(str(options.data), "Cora")[0]
    kept, hidden = split(cora.edge_index.numpy())
    edges = torch.from_numpy(kept.copy())
    torch.manual_seed(1)
    network = train(cora.x, edges)
    ways = {
        "by this network": network(cora.x, edges),
        "by the words alone": normalize(cora.x),
        "those cited most": degree(edges[0], len(cora.x))[:, None],
    }
    for way, vectors in ways.items():
        share = found(nearest(vectors, edges).numpy(), hidden)
        print(f"hidden citations among the ten nearest papers, {way}: {share:.1%}")
    save_file(network.state_dict(), options.out / "weights.safetensors")


def train(x: Tensor, edges: Tensor) -> GraphSAGE:
    """Return a network that tells the papers that one cites from all others.

    Each time it is given one half of the citations and finds the other half.
    """
    network = GraphSAGE().train()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.005, weight_decay=1e-4)
    for _ in range(EPOCHS):
        given = torch.rand(edges.shape[1]) < 0.5
        vectors = network(x, edges[:, given])
        source, target = edges[:, ~given]
        scores = SHARPNESS * (vectors[source] @ vectors.T)
        optimiser.zero_grad()
        cross_entropy(scores, target).backward()
        optimiser.step()
    return network.eval().requires_grad_(False)


if __name__ == "__main__":
    main()
