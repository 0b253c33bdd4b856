#!/usr/bin/env python3
"""Ask a server for the subjects of papers, from their words and citations, and draw the answer.

    python3 gallery/gat/client.py --graph cora.npz --out gat.png

``train.py --graph cora.npz`` writes that file. Needs tritonclient[grpc], numpy and matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).resolve().parent.name
SUBJECTS = (
    *("theory", "reinforcement learning", "genetic algorithms", "neural networks"),
    *("probabilistic methods", "case based", "rule learning"),
)


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output: 40 made-up papers, each citing two others."""
    papers = np.arange(40)
    words = (papers[:, None] * 31 + np.arange(18) * (papers[:, None] % 7 + 60)) % 1433
    x = np.zeros((40, 1433), np.float32)
    np.put_along_axis(x, words, 1, axis=1)
    cited = np.concatenate([(papers + 1) % 40, (papers * 3 + 7) % 40])
    return {"x__0": x, "edgeindex__1": np.stack([np.tile(papers, 2), cited])}


def ask(client: triton.InferenceServerClient, model: str, x: np.ndarray, edges: np.ndarray):
    """Return the logits [papers, 7] of a graph."""
    tensors = [
        triton.InferInput("x__0", list(x.shape), "FP32"),
        triton.InferInput("edgeindex__1", list(edges.shape), "INT64"),
    ]
    for tensor, array in zip(tensors, (x, edges), strict=True):
        tensor.set_data_from_numpy(array)
    return client.infer(model, tensors).as_numpy("logits__0")


def draw(logits: np.ndarray, edges: np.ndarray, subject: np.ndarray, path: Path) -> None:
    """Draw each paper between the corners of the subjects, the nearer the surer the network is."""
    import matplotlib.pyplot as plt

    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    angles = 2 * np.pi * np.arange(len(SUBJECTS)) / len(SUBJECTS) + np.pi / 2
    corners = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rng = np.random.default_rng(0)
    places = shares @ corners + rng.normal(0, 0.02, (len(logits), 2))
    right = logits.argmax(axis=1) == subject
    figure, axes = plt.subplots(figsize=(7, 6.4), layout="constrained")
    axes.plot(*places[edges].transpose(2, 0, 1), color="0.6", alpha=0.3, linewidth=0.5, zorder=0)
    palette = np.array(plt.get_cmap("Dark2").colors[: len(SUBJECTS)])
    colours = palette[subject]
    axes.scatter(*places[right].T, c=colours[right], s=9, linewidths=0)
    axes.scatter(*places[~right].T, c=colours[~right], s=22, marker="x", linewidths=1)
    for name, (x, y), colour in zip(SUBJECTS, 1.17 * corners, palette, strict=True):
        axes.text(x, y, name.replace(" ", "\n"), ha="center", va="center", color=colour)
    axes.set_title(f"Cora: {right.mean():.1%} of {len(right)} test papers right (x: wrong)")
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.2, 1.3), aspect="equal")
    axes.axis("off")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Ask, print the accuracy, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--graph", type=Path, required=True, help="what train.py --graph wrote")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    with np.load(options.graph) as cora:
        x, edges, subject, test = (cora[name] for name in ("x", "edges", "subject", "test"))
    with triton.InferenceServerClient(options.url) as client:
        logits = ask(client, options.model, x, edges)
    right = (logits.argmax(axis=1) == subject)[test].mean()
    print(f"{right:.1%} of {test.sum()} test papers right")
    if options.out is not None:
        number = np.cumsum(test) - 1  # of a paper among those drawn
        between = number[edges[:, test[edges].all(axis=0)]]
        draw(logits[test], between, subject[test], options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
