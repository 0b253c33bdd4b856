#!/usr/bin/env python3
"""Send the events of a simulated run one after the other, and draw how the lifetime settles.

    python gallery/electron_lifetime/client.py --out electron_lifetime.png

Needs tritonclient[grpc], numpy and matplotlib.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

MODEL = Path(__file__).resolve().parent.name
LIFETIME = 3.0  # ms
DRIFT = 4600  # ticks: the longest
TICK = 0.0005  # ms


def inputs() -> list[dict[str, np.ndarray]]:
    """Return the requests of the reference output, which are one sequence."""
    return simulate(events=3, seed=1)


def simulate(*, events: int, seed: int) -> list[dict[str, np.ndarray]]:
    """Return times (ticks) and charges of the hits of cosmic muons, by event."""
    rng = np.random.default_rng(seed)
    return [hits_of(rng, rng.integers(20, 60)) for _ in range(events)]


def hits_of(rng: np.random.Generator, count: int) -> dict[str, np.ndarray]:
    """Return the hits of an event; their charge has the long tail of Landau's fluctuations."""
    time = rng.integers(0, DRIFT, count)
    collected = 300 * (1 - 0.1 * np.log(rng.normal(size=count) ** 2))
    charge = collected * np.exp(-time * TICK / LIFETIME)
    return {"time": time.astype(np.float32), "charge": charge.round().astype(np.float32)}


def ask(
    client: triton.InferenceServerClient,
    model: str,
    run: int,
    events: list[dict[str, np.ndarray]],
) -> Iterator[tuple[float, float]]:
    """Yield lifetime and error (ms) after each event of a run, which has a number of its own."""
    for number, event in enumerate(events):
        tensors = []
        for name, column in event.items():
            tensors.append(triton.InferInput(name, list(column.shape), "FP32"))
            tensors[-1].set_data_from_numpy(column)
        answer = client.infer(
            model,
            tensors,
            sequence_id=run,
            sequence_start=number == 0,
            sequence_end=number == len(events) - 1,
        )
        yield answer.as_numpy("lifetime")[0], answer.as_numpy("error")[0]


def draw(lifetime: np.ndarray, error: np.ndarray, path: Path) -> None:
    """Draw lifetime and error by the number of events, and the truth."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 3.5), layout="constrained")
    events = np.arange(1, len(lifetime) + 1)
    axes.axhline(LIFETIME, color="0.5", linestyle="--", label="true")
    axes.fill_between(events, lifetime - error, lifetime + error, color="tab:blue", alpha=0.25)
    axes.plot(events, lifetime, color="tab:blue", label="found")
    axes.set(xlabel="events of the run", ylabel="electron lifetime (ms)")
    axes.set(xlim=(1, len(events)), ylim=(0.6 * LIFETIME, 1.4 * LIFETIME))
    axes.legend()
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print lifetimes and how far they are off, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--run", type=int, default=1, help="its number (default: %(default)s)")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    events = simulate(events=100, seed=1)
    with triton.InferenceServerClient(options.url) as client:
        found = np.array(list(ask(client, options.model, options.run, events)))
    for number in (100, 10, 1):
        lifetime, error = found[number - 1]
        off = abs(lifetime / LIFETIME - 1)
        print(f"{number:3} events: {lifetime:.2f} +- {error:.2f} ms, {off:.1%} off")
    if options.out is not None:
        draw(*found.T, options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
