#!/usr/bin/env python3
"""Ask a server for the vectors of texts, and print which are nearest to the first.

    python gallery/sentence_bert/client.py "A man is eating food." "Somebody dines." "It rains."

Needs tritonclient[grpc] and numpy.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).resolve().parent.name
EXAMPLES = (
    "A man is eating food.",
    "A man is eating a piece of bread.",
    "The girl is carrying a baby.",
    "A monkey is playing drums.",
)


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output: a batch of four."""
    return {"text": array(EXAMPLES)}


def array(texts) -> np.ndarray:
    """Return a batch of texts as Triton's libraries take them."""
    return np.array([[text.encode()] for text in texts], np.object_)


def ask(client: triton.InferenceServerClient, model: str, texts) -> np.ndarray:
    """Return the vectors [texts, 384] of at most 32 texts."""
    tensor = triton.InferInput("text", [len(texts), 1], "BYTES")
    tensor.set_data_from_numpy(array(texts))
    return client.infer(model, [tensor]).as_numpy("vector")


def main() -> None:
    """Ask, and print the texts by their distance from the first."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("texts", nargs="*", default=EXAMPLES, metavar="TEXT")
    options = parser.parse_args()
    with triton.InferenceServerClient(options.url) as client:
        vectors = ask(client, options.model, options.texts)
    likeness = vectors @ vectors[0]
    for number in np.argsort(-likeness):
        print(f"{likeness[number]:.2f}  {options.texts[number]}")


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
