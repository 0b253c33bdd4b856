#!/usr/bin/env python3
"""Write 1/catalogue.npz: texts, and the vectors that a server with sentence_bert gives them.

    python gallery/recommend/catalogue.py --texts texts.tsv

A file has one text a line, after a label and a tab. Needs tritonclient[grpc] and numpy.
"""

import argparse
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton

HERE = Path(__file__).resolve().parent
AT_ONCE = 32


def main() -> None:
    """Ask and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default="sentence_bert", help="default: %(default)s")
    parser.add_argument("--texts", type=Path, default=HERE / "sample.tsv", help="default: a sample")
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    texts = np.array([line.split("\t", 1)[1].encode() for line in lines])
    vectors = []
    with triton.InferenceServerClient(options.url) as client:
        for start in range(0, len(texts), AT_ONCE):
            some = texts[start : start + AT_ONCE, None].astype(np.object_)
            tensor = triton.InferInput("text", list(some.shape), "BYTES")
            tensor.set_data_from_numpy(some)
            vectors.append(client.infer(options.model, [tensor]).as_numpy("vector"))
    path = HERE / "1" / "catalogue.npz"
    np.savez_compressed(path, texts=texts, vectors=np.concatenate(vectors))


if __name__ == "__main__":
    main()
