#!/usr/bin/env python3
"""Train both networks on simulated heads; client.py measures them.

    python3 gallery/brain/train.py

Takes five minutes of one core. Runs in the kit's full environment (``numlkit prepare --full``),
which it makes if need be, and needs ``onnx`` beside it:
``pip install --target DIR --no-deps onnx ml_dtypes protobuf typing_extensions``, PYTHONPATH=DIR.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent

if find_spec("torch") is None:
    sys.path.insert(0, str(HERE.parents[1]))
    from deploy.host.bootstrap import ensure_kit

    ensure_kit()
    from scripts.environments import continue_in_full

    continue_in_full()
sys.path.insert(0, str(HERE / "1"))

import numpy as np
import torch
from heads import SIDE, is_brain, picture, tissues
from network import UNet
from torch import Tensor
from volumes import brightness, cube, resample

TRAINING_SEED, UNSEEN_SEED = 1, 2
STEPS = {"brain_locate": (32, 300, 3), "brain_segment": (64, 250, 2)}  # side, steps, batch


def main() -> None:
    """Train, write the networks and the sample; client.py measures them as they are served."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--heads", type=int, default=60, help="to train with (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE.parent, help="the model repository")
    options = parser.parse_args()
    torch.manual_seed(1)
    with ProcessPoolExecutor() as pool:
        heads = list(pool.map(simulate, [TRAINING_SEED] * options.heads, range(options.heads)))
    for model, (side, steps, batch) in STEPS.items():
        rng = np.random.default_rng(TRAINING_SEED)
        around = None if model == "brain_locate" else brain_box
        network = train(batches(rng, heads, side, batch, around), steps)
        path = options.out / model / "1" / "network.onnx"
        example = torch.zeros(1, 1, side, side, side)
        names: dict[str, Any] = {"input_names": ["volume"], "output_names": ["probability"]}
        torch.onnx.export(network, (example,), str(path), dynamo=False, **names)
    write_sample(options.out / "brain" / "sample.npz")


def simulate(seed: int, number: int) -> np.ndarray:
    """Return a head."""
    return tissues(np.random.default_rng([seed, number]))


Box = Callable[[np.random.Generator, np.ndarray], np.ndarray]


def batches(
    rng: np.random.Generator, heads: list[np.ndarray], side: int, size: int, around: Box | None
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield volumes and masks [size, 1, side, side, side] as the served network sees them."""
    while True:
        pairs = []
        for number in rng.integers(len(heads), size=size):
            head = any_way_up(rng, heads[number])
            volume, brain = picture(rng, head), is_brain(head)
            box = around(rng, brain) if around else part(rng)
            places = cube(box, side)
            low, high = brightness(volume)
            seen = np.clip((resample(volume, places) - low) / (high - low), 0, 1)
            pairs.append((seen, resample(brain.astype(np.float32), places) > 0.5))
        volumes, masks = (
            np.stack(each)[:, None].astype(np.float32) for each in zip(*pairs, strict=True)
        )
        yield torch.from_numpy(volumes), torch.from_numpy(masks)


def any_way_up(rng: np.random.Generator, head: np.ndarray) -> np.ndarray:
    """Return a head with its axes in another order, some of them reversed."""
    axes = tuple(axis for axis in range(3) if rng.random() < 0.5)
    return np.ascontiguousarray(np.flip(head.transpose(rng.permutation(3)), axes))


def part(rng: np.random.Generator) -> np.ndarray:
    """Return the box of a volume that cuts something off, or has empty space around."""
    return np.array([[0, SIDE]] * 3) + rng.integers(-8, 9, (3, 2))


def brain_box(rng: np.random.Generator, brain: np.ndarray) -> np.ndarray:
    """Return a box around the brain, about as large as brain_locate's with its margin."""
    ends = np.array([(where.min(), where.max() + 1) for where in brain.nonzero()])
    room = rng.uniform(0, 0.2, (3, 2)) * np.ptp(ends, axis=1).max()
    return ends + room * [-1, 1]


def train(examples: Iterator[tuple[Tensor, Tensor]], steps: int) -> UNet:
    """Return a network that was trained for some steps."""
    network = UNet().train()
    optimiser = torch.optim.AdamW(network.parameters())
    pace = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=steps)
    for _ in range(steps):
        volumes, masks = next(examples)
        found = network(volumes)
        overlap = 2 * (found * masks).sum() / (found + masks).sum()
        loss = 1 - overlap + torch.nn.functional.binary_cross_entropy(found, masks)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        pace.step()
    return network.eval()


def write_sample(path: Path) -> None:
    """Write an unseen head, of few voxels, for the reference output."""
    rng = np.random.default_rng(UNSEEN_SEED)
    volume = picture(rng, simulate(UNSEEN_SEED, 0))[::2, ::2, ::2]
    np.savez_compressed(path, volume=(200 * volume / volume.max()).astype(np.uint8))


if __name__ == "__main__":
    main()
