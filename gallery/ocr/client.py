#!/usr/bin/env python3
"""Ask a server for the text in a picture, and draw where it was found.

    python gallery/ocr/client.py --picture page.jpg --out found.png

Needs tritonclient[grpc], numpy and matplotlib.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

HERE = Path(__file__).absolute().parent  # not resolved: ocr_bls has a link to this file
MODEL = HERE.name
SAMPLE = HERE / "sample.png"


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output: the sample."""
    return {"picture": np.array([SAMPLE.read_bytes()], np.object_)}


def ask(client: triton.InferenceServerClient, model: str, picture: bytes):
    """Return texts, scores and boxes [lines, 4, 2] of a picture, the bytes of its file."""
    tensor = triton.InferInput("picture", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([picture], np.object_))
    answer = client.infer(model, [tensor])
    texts = [text.decode() for text in answer.as_numpy("texts")]
    return texts, answer.as_numpy("scores"), answer.as_numpy("boxes")


def draw(picture: Path, texts: list[str], boxes: np.ndarray, path: Path) -> None:
    """Draw the picture with the lines found, and beside it the texts at the same places."""
    import matplotlib.pyplot as plt

    image = plt.imread(picture)
    height, width = image.shape[:2]
    size = (11, 5.5 * height / width)
    figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained")
    left.imshow(image)
    for text, box in zip(texts, boxes, strict=True):
        left.plot(*np.vstack([box, box[:1]]).T, color="tab:red", linewidth=1)
        high = np.linalg.norm(box[3] - box[0])
        slope = np.degrees(np.arctan2(box[0, 1] - box[1, 1], box[1, 0] - box[0, 0]))
        points = 0.6 * high * 72 * size[0] / 2 / width
        right.text(*box[3], text, size=points, rotation=slope, rotation_mode="anchor")
    right.set(xlim=left.get_xlim(), ylim=left.get_ylim(), aspect="equal")
    for axes in (left, right):
        axes.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print the texts, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--picture", type=Path, default=SAMPLE, help="default: a sample")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    with triton.InferenceServerClient(options.url) as client:
        texts, scores, boxes = ask(client, options.model, options.picture.read_bytes())
    for text, score in zip(texts, scores, strict=True):
        print(f"{score:.2f}  {text}")
    if options.out is not None:
        draw(options.picture, texts, boxes, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
