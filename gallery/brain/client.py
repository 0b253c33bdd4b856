#!/usr/bin/env python3
"""Ask a server where the brain is in volumes, and draw the answer.

    python gallery/brain/client.py --out brain.png        # simulated heads
    python gallery/brain/client.py --volume t1.npy --out brain.png
    python gallery/brain/client.py --shared-memory        # of numlkit up --shared-memory

Needs tritonclient[grpc], numpy and matplotlib.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import tritonclient.grpc as triton
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

HERE = Path(__file__).resolve().parent
MODEL = HERE.name


def inputs() -> dict[str, np.ndarray]:
    """Return the request of the reference output: a simulated head, of few voxels."""
    with np.load(HERE / "sample.npz") as file:
        return {"volume": file["volume"].astype(np.float32)}


def ask(client: triton.InferenceServerClient, model: str, volume: np.ndarray) -> np.ndarray:
    """Return the mask of a volume."""
    tensor = triton.InferInput("volume", list(volume.shape), "FP32")
    tensor.set_data_from_numpy(volume)
    wanted = [triton.InferRequestedOutput("mask")]
    return client.infer(model, [tensor], outputs=wanted).as_numpy("mask")


def ask_by_shared_memory(
    client: triton.InferenceServerClient, model: str, volume: np.ndarray
) -> np.ndarray:
    """Return the mask of a volume; neither of them passes through a socket."""
    tensor = triton.InferInput("volume", list(volume.shape), "FP32")
    mask = triton.InferRequestedOutput("mask")
    with ExitStack() as stack:
        regions = {}
        for use, size in ((tensor, volume.nbytes), (mask, volume.size)):
            name = f"numlkit-{use.name()}-{id(volume)}"
            regions[use.name()] = shm.create_shared_memory_region(name, f"/{name}", size)
            stack.callback(shm.destroy_shared_memory_region, regions[use.name()])
            client.register_system_shared_memory(name, f"/{name}", size)
            stack.callback(unregister, client, name)
            use.set_shared_memory(name, size)
        shm.set_shared_memory_region(regions["volume"], [volume])
        client.infer(model, [tensor], outputs=[mask])
        return shm.get_contents_as_numpy(regions["mask"], np.uint8, volume.shape).copy()


def unregister(client: triton.InferenceServerClient, name: str) -> None:
    """Take shared memory back; Triton may hold it a moment longer than its answer takes."""
    for _ in range(100):
        try:
            client.unregister_system_shared_memory(name)
            return
        except InferenceServerException as error:
            if "in use" not in str(error):
                raise
            time.sleep(0.01)


def unseen(count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return simulated heads that train.py has not seen, and their true masks."""
    from heads import is_brain, picture, tissues

    found = []
    for number in range(count):
        rng = np.random.default_rng([2, number])
        head = tissues(rng)
        found.append((picture(rng, head), is_brain(head)))
    return found


def dice(mask: np.ndarray, truth: np.ndarray) -> float:
    """Return how far two masks overlap: 1 if they are the same."""
    return float(2 * (mask & truth).sum() / max(mask.sum() + truth.sum(), 1))


def times(client: triton.InferenceServerClient, model: str) -> dict[str, float]:
    """Return how long a model's requests have taken so far, in ms, by part."""
    stats = client.get_inference_statistics(model).model_stats[0].inference_stats
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    return {part: getattr(stats, part).ns / 1e6 for part in parts}


def draw(volume: np.ndarray, mask: np.ndarray, path: Path) -> None:
    """Draw the middle slices of a volume, and the outline of the brain."""
    import matplotlib.pyplot as plt

    figure, row = plt.subplots(1, 3, figsize=(9, 3.2), layout="constrained")
    middle = [int(np.median(where)) if len(where) else 0 for where in mask.nonzero()]
    for axis, axes in enumerate(row):
        axes.imshow(volume.take(middle[axis], axis).T, cmap="gray", origin="lower")
        outline = mask.take(middle[axis], axis).T
        axes.contour(outline, levels=[0.5], colors="tab:red", linewidths=1)
        axes.axis("off")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Ask, print how good and how fast it was, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--url", default="127.0.0.1:8001", help="gRPC (default: %(default)s)")
    parser.add_argument("--model", default=MODEL, help="default: %(default)s")
    parser.add_argument("--volume", type=Path, help=".npy, float32 (default: simulated heads)")
    parser.add_argument("--shared-memory", action="store_true", help="of a server on this host")
    parser.add_argument("--out", type=Path, help="picture to write")
    options = parser.parse_args()
    if options.volume is not None:
        asked = [(np.load(options.volume).astype(np.float32), None)]
    else:
        asked = unseen(5)
    way = ask_by_shared_memory if options.shared_memory else ask
    with triton.InferenceServerClient(options.url) as client:
        before, start = times(client, options.model), time.perf_counter()
        masks = [way(client, options.model, volume) for volume, _ in asked]
        whole = 1e3 * (time.perf_counter() - start) / len(masks)
        after = times(client, options.model)
    if options.volume is None:
        good = [dice(m > 0, truth) for m, (_, truth) in zip(masks, asked, strict=True)]
        print(f"Dice {np.mean(good):.1%} of {len(good)} heads, the worst {min(good):.1%}")
    spent = {part: (after[part] - before[part]) / len(masks) for part in after}
    parts = ", ".join(f"{part.removeprefix('compute_')} {ms:.1f}" for part, ms in spent.items())
    print(f"ms a volume: {whole:.1f}, of it in the server: {parts}")
    if options.out is not None:
        draw(asked[0][0], masks[0], options.out)


if __name__ == "__main__":
    try:
        main()
    except (InferenceServerException, OSError) as error:
        raise SystemExit(f"error: {error}") from None
