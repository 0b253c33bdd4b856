"""Files for bulk runs, and a scripted server that labels their events."""

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from deploy.client.transport import ServedModel
from deploy.events.bulk import Progress, label_files
from deploy.host.errors import KitError
from numl_formats.contract import INPUTS
from tests.unit.deploy.events.played import Fake, labels
from tests.unit.deploy.events.written import make_event, write_pynuml

MODEL = ServedModel(
    "nugraph3", INPUTS, (), {"semantic_classes": "a,b,c", "weights_sha256": "0" * 64}
)
FILES, EVENTS, HITS = 12, 4, 6


class Server(Fake):
    """Labels hits by their id; refuses what ``refuse`` names, by the id of its first hit."""

    refuse: ClassVar[Mapping[int, KitError]] = {}
    pause = 0.0

    def describe(self, model: str) -> ServedModel:
        return MODEL

    def infer(self, model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        time.sleep(self.pause)
        ids = tensors["hit_table_hit_id"]
        if len(ids) and int(ids[0]) in self.refuse:
            raise self.refuse[int(ids[0])]
        return labels(tensors)


def write_files(folder: Path) -> list[Path]:
    """Write files of events whose hits have ids that no other file's have."""
    paths = [folder / f"events{number:02}.h5" for number in range(FILES)]
    for number, path in enumerate(paths):
        events = [((number, 1, event), *make_event(HITS, 0)) for event in range(EVENTS)]
        for (*_, event), hits, _ in events:
            hits["hit_id"] = np.arange(HITS) + 1000 * number + HITS * event
        write_pynuml(path, events, sequence=False, event_table=False)
    return paths


def run(
    files: list[Path],
    into: Path,
    server: type[Server] = Server,
    check: Callable[[], None] = lambda: None,
) -> Progress:
    """Label files by connections that a class makes."""
    return label_files(files, into, MODEL, "http://x", server, check, concurrency=2)
