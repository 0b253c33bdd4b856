"""A head or a hit feature of one's own is said in one place: docs/own-network.md."""

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checkpoint_files import CHECKOUT, UVY, checkpoint_of, norm_file
from nugraph.models import NuGraph3
from numl_serving import generations
from numl_serving.errors import ModelFilesError
from numl_serving.event import Event
from numl_serving.generations import HeadRow
from numl_serving.importer import Request, import_checkpoint
from numl_serving.runtime import Runtime
from small_models import random_event
from torch import nn

MOMENTUM = HeadRow("momentum", "x_momentum", "hit", "none", ("momentum_decoder.net.{plane}",))
"""What is added to `numl_serving.generations.HEADS`."""

MOMENTUM_OUTPUTS = {f"x_momentum_{plane}": [-1, 2] for plane in UVY}

FEATURES = ("wire_position", "time_position", "integral", "rms", "goodness")
"""What is passed with ``--features``."""

# How the kit makes config.pbtxt, in its own Python.
CONFIGURATION = """
import json, sys
from pathlib import Path
from deploy.triton.card import read_card
from deploy.triton.config import LaunchSettings, for_launch, read_config
card, out = read_card(Path(sys.argv[1])), {}
settings = LaunchSettings(environment=Path("/environment"), parameters={}, instances=1)
config = for_launch(read_config(Path("model_repository/nugraph3/config.pbtxt")), settings, card)
for kind in ("input", "output"):
    out[kind] = {each.name: list(each.dims) for each in getattr(config, kind)}
    out[f"smoke {kind}"] = {
        name: list(each.dims) for name, each in getattr(card.signature, f"{kind}s").items()
    }
print(json.dumps(out))
"""


class MomentumDecoder(nn.Module):
    """Two numbers for each hit."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.ModuleDict({plane: nn.Linear(128, 2) for plane in UVY})


class MyNuGraph3(NuGraph3):
    """NuGraph3 with a head more."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(event_head=True, vertex_head=True, **arguments)
        self.momentum_decoder = MomentumDecoder()


def imported(folder: Path, model: nn.Module, **more: Any) -> Path:
    """Import a model's checkpoint; returns the folder with its files."""
    features = len(more.get("features", (0, 0, 0, 0)))
    norm = {plane: {"mean": [0] * features, "std": [1000] * features} for plane in UVY}
    request = Request(
        checkpoint=checkpoint_of(model.state_dict(), folder),
        architecture="nugraph3",
        out=folder / "model",
        norm=norm_file(folder, norm),
        **more,
    )
    import_checkpoint(request)
    return request.out


def configured(folder: Path) -> dict[str, dict[str, list[int]]]:
    """Return the tensors of config.pbtxt, and those that smoke expects, with their dimensions."""
    command = [CHECKOUT / ".venv" / "bin" / "python", "-c", CONFIGURATION, folder]
    done = subprocess.run(
        command, cwd=CHECKOUT, env={"PYTHONPATH": str(CHECKOUT)}, capture_output=True, check=True
    )
    found: dict[str, dict[str, list[int]]] = json.loads(done.stdout)
    return found


def test_without_its_row_a_head_is_refused_by_name(tmp_path):
    with pytest.raises(ModelFilesError, match=r"unexpected momentum_decoder\.net\.u\.bias"):
        imported(tmp_path, MyNuGraph3())


def test_a_head_with_a_row_is_configured_expected_and_answered(tmp_path, monkeypatch):
    monkeypatch.setattr(generations, "HEADS", (*generations.HEADS, MOMENTUM))
    torch.manual_seed(0)
    model = MyNuGraph3()
    folder = imported(tmp_path, model)
    for kind in ("output", "smoke output"):
        found = configured(folder)[kind]
        assert {name: found.get(name) for name in MOMENTUM_OUTPUTS} == MOMENTUM_OUTPUTS

    runtime = Runtime.load(folder)
    event = random_event(0, 90, schema=runtime.card.schema)
    answer = runtime.infer(event)
    for number, plane in enumerate(UVY):
        momentum = answer[f"x_momentum_{plane}"]
        assert momentum.shape == ((event.hit("local_plane") == number).sum(), 2)
        model.momentum_decoder.net[plane].bias.data += 1
    other = Runtime.load(imported(tmp_path, model)).infer(event)
    for name in answer:
        shift = 1 if name in MOMENTUM_OUTPUTS else 0
        np.testing.assert_allclose(other[name], answer[name] + shift, rtol=1e-5, atol=1e-5)


def test_a_hit_feature_is_a_name_which_requests_then_carry(tmp_path):
    torch.manual_seed(0)
    model = NuGraph3(in_features=5, event_head=True, vertex_head=True)
    for parameter in model.parameters():
        parameter.data *= 2.3  # a new network gives nearly the same answer to all hits
    folder = imported(tmp_path, model, features=FEATURES)
    for kind in ("input", "smoke input"):
        assert configured(folder)[kind]["hit_table_goodness"] == [-1]

    runtime = Runtime.load(folder)
    event = random_event(0, 90, schema=runtime.card.schema)
    columns = event.tensors()
    columns["hit_table_goodness"] = columns["hit_table_goodness"] + np.float32(500)
    changed = Event.from_tensors(columns, event.schema)
    first, second = runtime.infer(event), runtime.infer(changed)
    assert np.abs(first["x_semantic_u"] - second["x_semantic_u"]).max() > 1e-4
