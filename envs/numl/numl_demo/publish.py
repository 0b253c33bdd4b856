"""Trained demo models as model files, and the events that are packaged with them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from numl_serving.event import Event
from numl_serving.golden import Golden, disagreements, write_golden
from numl_serving.importer import Request, import_checkpoint
from numl_serving.modelcard import CARD_FILE, GOLDEN_FILE, WEIGHTS_FILE
from numl_serving.runtime import Runtime

from . import networks
from .graphs import Norm, make_graphs, prepare
from .simulate import SimulatedEvent, simulate_event
from .train import Trained

DESCRIPTION: Final = "demo weights: trained for minutes on simulated events; not for physics"
FILES: Final = (WEIGHTS_FILE, CARD_FILE, GOLDEN_FILE)
PACKAGED_SEED: Final = 100
_PACKAGED_SIZES: Final = ((130, 180), (280, 320), (500, 600), (850, 1000), (1350, 1500))
_GOLDEN: Final = 1


class PublishError(RuntimeError):
    """Our own network does not answer as nugraph's does."""


def packaged_events() -> list[SimulatedEvent]:
    """Return the five events of growing size that demonstrations and tests use."""
    return [
        simulate_event(PACKAGED_SEED, number, hits)
        for number, hits in enumerate(_PACKAGED_SIZES, start=1)
    ]


def publish(trained: Trained, checkpoint: Path, accuracy: Mapping[str, Any], out: Path) -> None:
    """Write a model's weights, card and golden answer; the answer is nugraph's own.

    Args:
        trained: the model and its feature statistics.
        checkpoint: its Lightning checkpoint.
        accuracy: what was measured on events that it has not seen.
        out: directory of the model's version; made if need be.

    Raises:
        PublishError: the files, loaded as a server loads them, answer otherwise than nugraph.
        numl_serving.errors.ServingError: the checkpoint cannot be imported.
    """
    event = packaged_events()[_GOLDEN]
    labels = networks.MODELS[trained.name]
    graph = prepare(make_graphs([event], labels), trained.norm)[0]
    golden = Golden(
        Event.from_tensors(event.request()), dict(networks.answer(trained.model, graph))
    )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".demo.", dir=out) as name:
        staging = Path(name)
        norm = staging / "norm.json"
        norm.write_text(json.dumps(_plain(trained.norm)), encoding="utf-8")
        import_checkpoint(
            Request(
                checkpoint=checkpoint,
                architecture=trained.name,
                out=staging / "files",
                norm=norm,
                demo=True,
                description=DESCRIPTION,
                accuracy=accuracy,
            )
        )
        answer = Runtime.load(staging / "files").infer(golden.event)
        if faults := disagreements(golden.outputs, answer):
            raise PublishError(f"{trained.name} answers otherwise than nugraph: {faults[0]}")
        write_golden(staging / "files" / GOLDEN_FILE, golden)
        for file in FILES:
            (staging / "files" / file).replace(out / file)


def link_files(source: Path, out: Path) -> None:
    """Let a second model share the files of the first by relative links."""
    out.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        link = out / file
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / ".." / source.parent.name / source.name / file)


def _plain(norm: Norm) -> dict[str, dict[str, list[float]]]:
    return {
        plane: {"mean": values[0].tolist(), "std": values[1].tolist()}
        for plane, values in norm.items()
    }
