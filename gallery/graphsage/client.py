#!/usr/bin/env python3
"""Ask a server which papers each paper might cite, and compare with citations it is not told.

    python gallery/graphsage/client.py --graph cora.npz --out graphsage.png

``gallery/gat/train.py --graph cora.npz`` writes that file. Needs tritonclient[grpc], numpy and
matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).resolve().parent.name


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output: 16 made-up papers, each citing two others."""
    papers = np.arange(16)
    words = (papers[:, None] * 31 + np.arange(18) * (papers[:, None] % 7 + 60)) % 1433
    x = np.zeros((16, 1433), np.float32)
    np.put_along_axis(x, words, 1, axis=1)
    cited = np.concatenate([(papers + 1) % 16, (papers * 11 + 7) % 16])
    return {"x": x, "edges": np.stack([np.tile(papers, 2), cited])}


def ask(client: triton.InferenceServerClient, model: str, x: np.ndarray, edges: np.ndarray):
    """Return the vectors [papers, 64] of a graph, and each paper's ten nearest."""
    tensors = [
        triton.InferInput("x", list(x.shape), "FP32"),
        triton.InferInput("edges", list(edges.shape), "INT64"),
    ]
    for tensor, array in zip(tensors, (x, edges), strict=True):
        tensor.set_data_from_numpy(array)
    answer = client.infer(model, tensors)
    return answer.as_numpy("vectors"), answer.as_numpy("nearest")


def draw(vectors: np.ndarray, hidden: np.ndarray, subject: np.ndarray, path: Path) -> None:
    """Draw the vectors in their two main directions, and the hidden citations as lines."""
    import matplotlib.pyplot as plt

    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-6)
    _, _, axes_of = np.linalg.svd(vectors - vectors.mean(axis=0), full_matrices=False)
    places = vectors @ axes_of[:2].T
    figure, axes = plt.subplots(figsize=(7, 6), layout="constrained")
    axes.plot(*places[hidden].transpose(2, 0, 1), color="0.5", alpha=0.4, linewidth=0.5, zorder=0)
    colours = np.array(plt.get_cmap("Dark2").colors)[subject]
    axes.scatter(*places.T, c=colours, s=5, linewidths=0)
    axes.set_title("Cora: papers by their vectors, and the hidden citations")
    axes.axis("off")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print which share of hidden citations was found, draw."""
    from split import found, split

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--graph", type=Path, required=True, help="what gat/train.py --graph wrote")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    with np.load(options.graph) as cora:
        x, edges, subject = (cora[name] for name in ("x", "edges", "subject"))
    seen, hidden = split(edges)
    with triton.InferenceServerClient(options.url) as client:
        vectors, nearest = ask(client, options.model, x, seen)
    share = found(nearest, hidden)
    print(f"{share:.1%} of {hidden.shape[1]} hidden citations are among a paper's ten nearest")
    if options.out is not None:
        draw(vectors, hidden, subject, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
