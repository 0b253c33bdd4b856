#!/usr/bin/env python3
"""Ask a server which interaction made each image of a file, and draw some of them.

    python gallery/event_image/client.py --out event_image.png

train.py wrote the sample, of simulated events. Needs tritonclient[grpc], numpy and matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

HERE = Path(__file__).resolve().parent
MODEL = HERE.name
SAMPLE = HERE / "sample.npz"
LABELS = (HERE / "labels.txt").read_text().split()
AT_ONCE = 32


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output: the sample's first images."""
    return {"image": read(SAMPLE)[0][:4]}


def read(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return images [events, 3, 96, 96] and the number of the right label of each."""
    with np.load(path) as file:
        images = np.zeros((len(file["truth"]), 3, 96, 96), np.float32)
        images[tuple(file["pixel"])] = file["charge"]
        return images, file["truth"]


def ask(client: triton.InferenceServerClient, model: str, images: np.ndarray) -> list[list[str]]:
    """Return, of each of at most 32 images, the two best classes as ``share:number:label``."""
    tensor = triton.InferInput("image", list(images.shape), "FP32")
    tensor.set_data_from_numpy(images)
    best = triton.InferRequestedOutput("scores", class_count=2)
    found = client.infer(model, [tensor], outputs=[best]).as_numpy("scores")
    return [[each.decode() for each in classes] for classes in found]


def draw(images: np.ndarray, found: list[list[str]], truth: np.ndarray, path: Path) -> None:
    """Draw the collection plane of each image, and above it what was found."""
    import matplotlib.pyplot as plt

    figure, grid = plt.subplots(3, 4, figsize=(8, 6.6), layout="constrained")
    for axes, image, classes, right in zip(grid.flat, images, found, truth, strict=False):
        axes.imshow(np.log1p(image[2].T / 100), cmap="magma_r", origin="lower")
        share, number, label = classes[0].split(":")
        colour = "tab:green" if int(number) == right else "tab:red"
        axes.set_title(f"{label} {float(share):.2f}", color=colour, size=10)
        axes.set_xlabel(f"true: {LABELS[right]}", size=8)
        axes.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print the accuracy, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--images", type=Path, default=SAMPLE, help="default: a sample")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    images, truth = read(options.images)
    found: list[list[str]] = []
    with triton.InferenceServerClient(options.url) as client:
        for start in range(0, len(images), AT_ONCE):
            found += ask(client, options.model, images[start : start + AT_ONCE])
    right = np.array([classes[0].split(":")[2] for classes in found]) == np.array(LABELS)[truth]
    print(f"{right.mean():.1%} of {len(truth)} images right")
    if options.out is not None:
        draw(images, found, truth, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
