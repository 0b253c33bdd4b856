#!/usr/bin/env python3
"""Write 1/catalogue.npz: texts, and the vectors that a server with sentence_bert gives them.

    python gallery/recommend/catalogue.py --texts texts.tsv

A file has one text a line, after a label and a tab. Needs tritonclient[grpc] and numpy. The
model's reference output is of the catalogue before, and is removed: start the server again, and
write one by `numlkit golden`.
"""

import argparse
import re
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

HERE = Path(__file__).resolve().parent
(ASKED,) = re.findall(r'^MODEL = "(.*)"$', (HERE / "1" / "model.py").read_text(), re.MULTILINE)
AT_ONCE, FEWEST = 32, 6  # five for one that is in the catalogue itself


def main() -> None:
    """Ask and write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=ASKED, help="default: %(default)s")
    parser.add_argument("--texts", type=Path, default=HERE / "sample.tsv", help="default: a sample")
    options = parser.parse_args()
    lines = options.texts.read_text(encoding="utf-8").splitlines()
    if len(lines) < FEWEST or not all("\t" in line for line in lines):
        parser.error(f"{options.texts}: not {FEWEST} or more lines with a label, a tab and a text")
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
    path.with_name("golden.npz").unlink(missing_ok=True)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
