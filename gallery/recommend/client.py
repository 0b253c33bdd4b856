#!/usr/bin/env python3
"""Ask a server for the texts that are most like each text of a file, and draw who is near whom.

    python gallery/recommend/client.py --out recommend.png
    python gallery/recommend/client.py --text "Is there water on Mars?"

A file has one text a line, after its label and a tab. Needs tritonclient[grpc], numpy and
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
    return {"text": np.array([b"Is there water on Mars?"], np.object_)}


def ask(client: triton.InferenceServerClient, model: str, text: str):
    """Return the nearest texts, and their likeness."""
    tensor = triton.InferInput("text", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode()], np.object_))
    answer = client.infer(model, [tensor])
    return [each.decode() for each in answer.as_numpy("texts")], answer.as_numpy("likeness")


def draw(near: list[list[str]], rows: list[list[str]], path: Path) -> None:
    """Draw the texts in a circle, and lines to those that are recommended for each."""
    import matplotlib.pyplot as plt

    labels = list(dict.fromkeys(label for label, _ in rows))
    number = {text: n for n, (_, text) in enumerate(rows)}
    angles = 2 * np.pi * np.arange(len(rows)) / len(rows)
    places = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    colours = [plt.get_cmap("Dark2").colors[labels.index(label)] for label, _ in rows]
    figure, axes = plt.subplots(figsize=(6, 6), layout="constrained")
    for (label, text), found in zip(rows, near, strict=True):
        for other in found:
            same = rows[number[other]][0] == label
            ends = places[[number[text], number[other]]].T
            axes.plot(*ends, color=colours[number[text]] if same else "0.75", linewidth=0.8)
    axes.scatter(*places.T, c=colours, s=40, zorder=3)
    for label, colour in zip(labels, plt.get_cmap("Dark2").colors, strict=False):
        middle = places[[n for n, row in enumerate(rows) if row[0] == label]].mean(axis=0)
        axes.text(*1.2 * middle / np.linalg.norm(middle), label, color=colour, ha="center")
    axes.set(xlim=(-1.4, 1.4), ylim=(-1.3, 1.3), aspect="equal")
    axes.axis("off")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print how many recommended texts have the label of the text itself, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--text", help="ask for this one only")
    parser.add_argument("--texts", type=Path, default=SAMPLE, help="default: a sample")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    if not lines or not all("\t" in line for line in lines):
        parser.error(f"{options.texts}: not lines with a label, a tab and a text")
    rows = [line.split("\t", 1) for line in lines]
    with triton.InferenceServerClient(options.url) as client:
        if options.text is not None:
            for text, likeness in zip(*ask(client, options.model, options.text), strict=True):
                print(f"{likeness:.2f}  {text}")
            return
        near = [ask(client, options.model, text)[0] for _, text in rows]
    label_of = {text: label for label, text in rows}
    if not label_of.keys() >= {each for found in near for each in found}:
        parser.error(f"{options.texts}: not the texts of the catalogue; give --texts with those")
    same = [
        label_of[each] == label
        for (label, _), found in zip(rows, near, strict=True)
        for each in found
    ]
    print(f"{np.mean(same):.1%} of {len(same)} recommended texts have the label of the text")
    if options.out is not None:
        draw(near, rows, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
