#!/usr/bin/env python3
"""Ask a server for the vectors of texts, twice, and print how long each took.

    python gallery/sentence_cache/client.py "Is it raining?" "What is for dinner?"

Needs tritonclient[grpc] and numpy.
"""

import argparse
import time
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).resolve().parent.name
EXAMPLES = ("A man is eating food.", "The girl is carrying a baby.", "A monkey is playing drums.")


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output."""
    return {"text": np.array([[EXAMPLES[0].encode()]], np.object_)}


def ask(client: triton.InferenceServerClient, model: str, text: str) -> np.ndarray:
    """Return the vector [384] of a text."""
    tensor = triton.InferInput("text", [1, 1], "BYTES")
    tensor.set_data_from_numpy(np.array([[text.encode()]], np.object_))
    return client.infer(model, [tensor]).as_numpy("vector")[0]


def timed(client: triton.InferenceServerClient, model: str, text: str) -> float:
    """Return how many milliseconds an answer takes."""
    start = time.perf_counter()
    ask(client, model, text)
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    """Ask for each text twice, and print the times."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("texts", nargs="*", default=EXAMPLES, metavar="TEXT")
    options = parser.parse_args()
    with triton.InferenceServerClient(options.url) as client:
        for text in options.texts:
            first, again = (timed(client, options.model, text) for _ in range(2))
            print(f"{first:6.1f} ms, then {again:.1f} ms  {text}")


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
