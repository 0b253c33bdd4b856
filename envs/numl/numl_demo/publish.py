"""Write trained demo models as model files."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from numl_serving.errors import ServingError
from numl_serving.event import Event
from numl_serving.importer import Request, import_checkpoint
from numl_serving.runtime import Runtime

from numl_formats.golden import GoldenEvent, difference, write_golden
from numl_formats.repository import CARD_FILE, GOLDEN_FILE, WEIGHTS_FILE

from . import networks, oracle
from .events import packaged_event
from .geometry import PLANES
from .graphs import make_graphs
from .train import Trained

DESCRIPTION: Final = "demo weights: trained for minutes on simulated events; not for physics"
FILES: Final = (WEIGHTS_FILE, CARD_FILE, GOLDEN_FILE)
_GOLDEN: Final = 2


class PublishError(ServingError):
    """Our own network does not answer as nugraph's does."""


def publish(trained: Trained, checkpoint: Path, accuracy: Mapping[str, Any], out: Path) -> None:
    """Write a model's weights, card and golden answer; the answer is nugraph's own.

    Args:
        trained: the model.
        checkpoint: its Lightning checkpoint.
        accuracy: what was measured on events that it has not seen.
        out: directory of the model's version; made if need be.

    Raises:
        PublishError: the files, loaded as a server loads them, answer otherwise than nugraph.
        numl_serving.errors.ServingError: the checkpoint cannot be imported.
    """
    event = packaged_event(_GOLDEN)
    labels = networks.MODELS[trained.name]
    graph = networks.prepare(trained.name, make_graphs([event], labels))[0]
    golden = GoldenEvent(event.request(), oracle.answer(trained.model, graph, PLANES))
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".demo.", dir=out) as name:
        staging = Path(name)
        import_checkpoint(
            Request(
                checkpoint=checkpoint,
                architecture=trained.name,
                out=staging / "files",
                demo=True,
                description=DESCRIPTION,
                accuracy=accuracy,
            )
        )
        answer = Runtime.load(staging / "files").infer(Event.from_tensors(golden.inputs))
        if fault := difference(golden, answer):
            raise PublishError(f"{trained.name} answers differently from nugraph: {fault}")
        write_golden(staging / "files" / GOLDEN_FILE, golden)
        for file in FILES:
            (staging / "files" / file).replace(out / file)


def link_files(source: Path, out: Path) -> None:
    """Share one model's files with another by relative links."""
    out.mkdir(parents=True, exist_ok=True)
    for file in FILES:
        link = out / file
        link.unlink(missing_ok=True)
        link.symlink_to(Path("..") / ".." / source.parent.name / source.name / file)
