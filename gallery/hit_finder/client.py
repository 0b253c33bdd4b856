#!/usr/bin/env python3
"""Send the waveforms of a simulated event, take the hits as they arrive, and draw them.

    python gallery/hit_finder/client.py --out hit_finder.png

Needs tritonclient[grpc], numpy and matplotlib.
"""

import argparse
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Queue

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).resolve().parent.name
NEAR = 4  # ticks between a hit and the pulse that it is


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output."""
    return {"waveforms": simulate(80, 200, tracks=3, seed=1)[0]}


def simulate(wires: int, ticks: int, *, tracks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the waveforms of straight tracks [wires, ticks], and wire and time [pulses, 2]."""
    rng = np.random.default_rng(seed)
    pulses = []
    for _ in range(tracks):
        start, length = rng.integers(wires), rng.integers(wires // 4, wires)
        crossed = np.arange(start, min(start + length, wires))
        time = rng.uniform(0, ticks) + rng.normal(0, 1.5) * (crossed - start)
        pulses += [(wire, at) for wire, at in zip(crossed, time, strict=True) if 9 < at < ticks - 9]
    truth = np.array(pulses)
    # A track's charge in a tick, with the long tail of Landau's fluctuations; diffusion widens it.
    height = 9 * (1 - 0.1 * np.log(rng.normal(size=len(truth)) ** 2))
    width = rng.uniform(2, 3.5, len(truth))
    # Wires differ in pedestal and noise.
    noise = rng.normal(size=(wires, ticks)) * rng.uniform(1.5, 4.5, (wires, 1))
    waveforms = 400 + rng.normal(0, 10, (wires, 1)) + noise
    for (wire, at), peak, rms in zip(truth, height, width, strict=True):
        waveforms[int(wire)] += peak * np.exp(-0.5 * ((np.arange(ticks) - at) / rms) ** 2)
    return waveforms.round().astype(np.int16), truth


def ask(
    client: triton.InferenceServerClient, model: str, waveforms: np.ndarray
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the hits of each response, by column, when it arrives."""
    answers: Queue = Queue()
    tensor = triton.InferInput("waveforms", list(waveforms.shape), "INT16")
    tensor.set_data_from_numpy(waveforms)
    client.start_stream(lambda result, error: answers.put(error or result))
    try:
        with suppress(InferenceServerException):  # of a stream that has failed: the answer says why
            client.async_stream_infer(model, [tensor], enable_empty_final_response=True)
        while True:
            answer = answers.get()
            if isinstance(answer, Exception):
                raise answer
            response = answer.get_response()
            if response.outputs:
                yield {output.name: answer.as_numpy(output.name) for output in response.outputs}
            if response.parameters["triton_final_response"].bool_param:
                return
    finally:
        client.stop_stream()


def by_threshold(waveforms: np.ndarray, counts: float) -> dict[str, np.ndarray]:
    """Return hits as a fixed threshold finds them, to compare with: the middle of what is above."""
    above = np.pad(
        waveforms - np.median(waveforms, axis=1, keepdims=True) > counts, ((0, 0), (1, 1))
    )
    change = np.diff(above.astype(np.int8), axis=1)
    (wire, begin), (_, end) = np.nonzero(change == 1), np.nonzero(change == -1)
    return {"wire": wire, "time": (begin + end - 1) / 2}


def compare(hits: dict[str, np.ndarray], truth: np.ndarray) -> tuple[float, float]:
    """Return the share of the pulses that were found, and of the hits that are pulses."""
    same = np.abs(hits["wire"][:, None] - truth[:, 0]) < 0.5
    near = same & (np.abs(hits["time"][:, None] - truth[:, 1]) < NEAR)
    return near.any(axis=0).mean(), near.any(axis=1).mean()


def draw(waveforms: np.ndarray, hits: dict[str, np.ndarray], path: Path) -> None:
    """Draw the waveforms as an image, and a mark at each hit."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    charge = waveforms - np.median(waveforms, axis=1, keepdims=True)
    axes.imshow(charge.T, cmap="Greys", vmin=5, vmax=25, origin="lower", aspect="auto")
    axes.scatter(hits["wire"], hits["time"], s=22, facecolors="none", edgecolors="tab:red")
    axes.set(xlabel="wire", ylabel="time (ticks)")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print what arrives and how much of the truth it is, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    waveforms, truth = simulate(240, 400, tracks=8, seed=0)
    parts = []
    with triton.InferenceServerClient(options.url) as client:
        for part in ask(client, options.model, waveforms):
            print(f"{len(part['wire'])} hits arrive")
            parts.append(part)
    hits = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    ways = {options.model: hits, "a fixed threshold": by_threshold(waveforms, 10)}
    for way, those in ways.items():
        found, right = compare(those, truth)
        print(f"{found:.1%} of the pulses found, {right:.1%} of the hits right: {way}")
    if options.out is not None:
        draw(waveforms, hits, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
