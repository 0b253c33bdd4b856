#!/usr/bin/env python3
"""Ask a server which label fits each text of a file best, and draw the answer.

    python gallery/zero_shot/client.py --out zero_shot.png

A file has one text a line, after its right label and a tab. Needs tritonclient[grpc], numpy and
matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

HERE = Path(__file__).resolve().parent
MODEL = HERE.name
SAMPLE = HERE / "sample.tsv"


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output."""
    text = "The rings of Saturn will be seen edge-on next spring."
    labels = ("astronomy", "cooking", "football")
    return {"text": array([text]), "labels": array(labels)}


def array(texts) -> np.ndarray:
    """Return texts as Triton's libraries take them."""
    return np.array([text.encode() for text in texts], np.object_)


def ask(client: triton.InferenceServerClient, model: str, text: str, labels: list[str]):
    """Return each label's share of 1."""
    tensors = []
    for name, content in (("text", array([text])), ("labels", array(labels))):
        tensors.append(triton.InferInput(name, list(content.shape), "BYTES"))
        tensors[-1].set_data_from_numpy(content)
    return client.infer(model, tensors).as_numpy("scores")


def draw(scores: np.ndarray, rows: list[list[str]], labels: list[str], path: Path) -> None:
    """Draw each text's shares as a row of a table; a ring marks the right label."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 0.17 * len(rows) + 0.6), layout="constrained")
    axes.imshow(scores, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for number, (label, _) in enumerate(rows):
        wrong = labels[scores[number].argmax()] != label
        colour = "tab:red" if wrong else "tab:green"
        axes.plot(labels.index(label), number, "o", mfc="none", mec=colour, markersize=5)
    axes.set_xticks(range(len(labels)), labels)
    axes.set_yticks(range(len(rows)), [text for _, text in rows], size=6)
    axes.xaxis.tick_top()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Ask, print the accuracy, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--texts", type=Path, default=SAMPLE, help="default: a sample")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    if not lines or not all("\t" in line for line in lines):
        parser.error(f"{options.texts}: not lines with a label, a tab and a text")
    rows = [line.split("\t", 1) for line in lines]
    labels = list(dict.fromkeys(label for label, _ in rows))
    with triton.InferenceServerClient(options.url) as client:
        scores = np.stack([ask(client, options.model, text, labels) for _, text in rows])
    right = [labels[best] == label for best, (label, _) in zip(scores.argmax(1), rows, strict=True)]
    print(f"{np.mean(right):.1%} of {len(rows)} texts right")
    if options.out is not None:
        draw(scores, rows, labels, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
