"""An evaluation on pynuml's tables; the command is tested in ``commands/test_evaluate.py``."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from deploy.client.transport import ServedModel
from deploy.events.evaluation import evaluate
from deploy.events.truth import FLAVOURS
from numl_formats.contract import INPUTS
from tests.unit.deploy.events.played import Fake

EVENTS = Path(__file__).parent / "data/graphs_events.h5"
OUTPUTS = ("x_filter_u", "e_evt")


class Server(Fake):
    """Answers the first event class, and signal for each hit."""

    classes = 2

    def infer(self, model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        planes = tensors["hit_table_local_plane"]
        outputs = {
            f"x_filter_{name}": np.ones((planes == number).sum(), np.float32)
            for number, name in enumerate("uvy")
        }
        return {**outputs, "e_evt": np.eye(self.classes, dtype=np.float32)[:1]}


class OfFlavours(Server):
    classes = len(FLAVOURS)


def heads(path: Path, server: type[Server], said: str) -> dict[str, tuple[str, ...]]:
    parameters = {"event_classes": said} if said else {}
    model = ServedModel("nugraph3", INPUTS, OUTPUTS, parameters)
    found = evaluate(path, None, model, server, concurrency=2)
    assert found.failures == []
    return {name: head.classes for name, head in found.scores.heads.items()}


@pytest.fixture
def without_flavours(tmp_path):
    path = tmp_path / "events.h5"
    shutil.copy(EVENTS, path)
    with h5py.File(path, "r+") as file:
        del file["event_table/is_cc"]
    return path


def test_tables_are_compared_with_the_flavours_that_they_hold():
    for said in (",".join(FLAVOURS), ""):
        assert heads(EVENTS, OfFlavours, said)["event"] == FLAVOURS


def test_event_classes_that_tables_do_not_hold_are_left_out(without_flavours):
    for path in (EVENTS, without_flavours):
        assert heads(path, Server, "beam,cosmic").keys() == {"filter"}
    assert heads(without_flavours, Server, "").keys() == {"filter"}
