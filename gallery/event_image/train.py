#!/usr/bin/env python3
"""Train the network on simulated events, and measure it beside two baselines.

    python3 gallery/event_image/train.py

Takes five minutes of one core, most of it for simulating the events. Runs in the kit's full
environment (``numlkit prepare --full``), and makes it if need be.
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

if find_spec("torch_geometric") is None:
    sys.path.insert(0, str(ROOT))
    from deploy.host.bootstrap import ensure_kit

    ensure_kit()
    from scripts.environments import continue_in_full

    continue_in_full()
sys.path[:0] = [str(HERE / "1")]
sys.path.append(str(ROOT / "envs" / "numl"))

import numpy as np
import torch
from images import image_of
from network import CLASSES, Classifier
from numl_demo.simulate import simulate_event
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

CLASS_OF = {(1, 12): 0, (1, 14): 1, (0, 14): 2}  # is_cc, nu_pdg; tau neutrinos are left out
TRAINING_SEED, UNSEEN_SEED = 11, 12
EPOCHS, BATCH = 16, 32


def main() -> None:
    """Train, print the accuracies, write the weights and the sample."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--events", type=int, default=3000, help="to train with (%(default)s)")
    parser.add_argument("--out", type=Path, default=HERE, help="where weights and sample go")
    options = parser.parse_args()
    seen, truth = simulate(TRAINING_SEED, options.events)
    unseen, right = simulate(UNSEEN_SEED, 600)
    torch.manual_seed(1)
    network = train(seen, truth)
    print(f"right of {len(right)} unseen events: {accuracy(network, unseen, right):.1%}")
    line = fit_line(totals(seen), truth)
    print(f"from the charge in each plane: {accuracy(line, totals(unseen), right):.1%}; ", end="")
    print(f"always the largest class: {right.bincount().max() / len(right):.1%}")
    save_file(network.state_dict(), options.out / "1" / "weights.safetensors")
    write_sample(unseen[:200], right[:200], options.out / "sample.npz")


def simulate(seed: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the images and classes of simulated events."""
    with ProcessPoolExecutor() as pool:
        made = pool.map(simulate_one, [seed] * count, range(1, count + 1), chunksize=50)
        images, truth = zip(*(each for each in made if each is not None), strict=True)
    return torch.from_numpy(np.stack(images)), torch.tensor(truth)


def simulate_one(seed: int, number: int) -> tuple[np.ndarray, int] | None:
    """Return an event's image and class; None for a tau neutrino."""
    tables = simulate_event(seed, number).tables
    true = tables["event_table"]
    found = CLASS_OF.get((int(true["is_cc"].item()), int(true["nu_pdg"].item())))
    if found is None:
        return None
    hits = tables["hit_table"]
    columns = ("local_plane", "local_wire", "local_time", "integral")
    return image_of(*(hits[name][:, 0] for name in columns)), found


def train(images: Tensor, truth: Tensor) -> Classifier:
    """Return the trained network."""
    network = Classifier().train()
    optimiser = torch.optim.AdamW(network.parameters(), weight_decay=1e-2)
    steps = EPOCHS * (len(images) // BATCH + 1)
    pace = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(images)).split(BATCH):
            optimiser.zero_grad()
            cross_entropy(network(varied(images[some])), truth[some]).backward()
            optimiser.step()
            pace.step()
    return network.eval()


def varied(images: Tensor) -> Tensor:
    """Return images mirrored in time, or not, and moved by up to four pixels."""
    if torch.rand(()) < 0.5:
        images = images.flip(-1)
    by = torch.randint(-4, 5, (2,)).tolist()
    return images.roll(by, dims=(-2, -1))


def totals(images: Tensor) -> Tensor:
    """Return what the baseline sees: charge and number of pixels in each plane, logarithmic."""
    return torch.cat([images.sum((2, 3)), (images > 0).sum((2, 3))], dim=1).float().log1p()


def fit_line(features: Tensor, truth: Tensor) -> nn.Module:
    """Return a linear classifier of a few features."""
    mean, spread = features.mean(dim=0), features.std(dim=0)
    line = nn.Linear(features.shape[1], CLASSES)
    optimiser = torch.optim.LBFGS(line.parameters(), max_iter=200)

    def loss() -> Tensor:
        optimiser.zero_grad()
        found = cross_entropy(line((features - mean) / spread), truth)
        found.backward()
        return found

    optimiser.step(loss)
    with torch.no_grad():
        line.weight /= spread
        line.bias -= line.weight @ mean
    return line


@torch.inference_mode()
def accuracy(network: nn.Module, images: Tensor, truth: Tensor) -> float:
    """Return the share of events whose class is found."""
    found = torch.cat([network(some).argmax(dim=1) for some in images.split(BATCH)])
    return float((found == truth).float().mean())


def write_sample(images: Tensor, truth: Tensor, path: Path) -> None:
    """Write unseen events as client.py reads them: the pixels with charge, and the truth."""
    pixel = np.stack(images.numpy().nonzero()).astype(np.uint8)
    charge = images.numpy()[tuple(pixel)].astype(np.float16)
    np.savez_compressed(path, pixel=pixel, charge=charge, truth=truth.numpy().astype(np.uint8))


if __name__ == "__main__":
    main()
