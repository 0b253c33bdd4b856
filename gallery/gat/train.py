#!/usr/bin/env python3
"""Train the network on Cora, and measure it beside two baselines.

    python3 gallery/gat/train.py

Takes a minute of one core. PyTorch Geometric downloads Cora, unless ``--data`` already has
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

import numpy as np
import torch
from network import GAT
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.datasets import Planetoid

EPOCHS = 200
NO_EDGES = torch.empty(2, 0, dtype=torch.long)


def main() -> None:
    """Train, print the accuracies, write the weights."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    cache = Path.home() / ".cache" / "numlkit" / "planetoid"
    parser.add_argument("--data", type=Path, default=cache, help="Planetoid's folder (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE / "1", help="where the weights go")
    graph = "write Cora to this .npz for client.py, and train nothing"
    parser.add_argument("--graph", type=Path, help=graph)
    options = parser.parse_args()
    cora = Planetoid(str(options.data), "Cora")[0]
    if options.graph is not None:
        write_graph(cora, options.graph)
        return
    torch.manual_seed(1)
    torch.set_num_threads(1)
    network, right = train(cora, cora.edge_index)
    _, alone = train(cora, NO_EDGES)
    largest = cora.y[cora.test_mask].bincount().max().item() / cora.test_mask.sum().item()
    print(f"right of the test set's 1000 papers: {right:.1%}")
    print(f"the same without citations: {alone:.1%}; always the largest class: {largest:.1%}")
    save_file(network.state_dict(), options.out / "weights.safetensors")


def train(cora: Data, edges: Tensor) -> tuple[GAT, float]:
    """Return the network of the epoch that validates best, and its accuracy on the test set."""
    network = GAT()
    optimiser = torch.optim.Adam(network.parameters(), lr=0.005, weight_decay=5e-4)
    best, chosen = 0.0, network.state_dict()
    for _ in range(EPOCHS):
        network.train()
        optimiser.zero_grad()
        logits = network(cora.x, edges)
        cross_entropy(logits[cora.train_mask], cora.y[cora.train_mask]).backward()
        optimiser.step()
        validated = accuracy(network, cora, edges, cora.val_mask)
        if validated > best:
            best, chosen = validated, {k: v.clone() for k, v in network.state_dict().items()}
    network.load_state_dict(chosen)
    return network, accuracy(network, cora, edges, cora.test_mask)


@torch.inference_mode()
def accuracy(network: GAT, cora: Data, edges: Tensor, which: Tensor) -> float:
    """Return the share of papers, of those in a mask, whose subject is found."""
    network.eval()
    found = network(cora.x, edges).argmax(dim=1)
    return float((found == cora.y)[which].float().mean())


def write_graph(cora: Data, path: Path) -> None:
    """Write the graph as client.py reads it."""
    arrays = {"x": cora.x, "edges": cora.edge_index, "subject": cora.y, "test": cora.test_mask}
    np.savez_compressed(path, **{name: tensor.numpy() for name, tensor in arrays.items()})


if __name__ == "__main__":
    main()
