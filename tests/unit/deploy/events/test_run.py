"""A whole run over a file; a fake stands for the server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from deploy.client.transport import ServedModel
from deploy.events.run import send
from deploy.host.paths import CHECKOUT
from deploy.triton.contract import INPUTS

EVENTS = CHECKOUT / "scripts/data/demo_events.h5"
MODEL = ServedModel("nugraph3", INPUTS, (), {})


class Answers:
    def infer(self, _model: ServedModel, tensors: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        for i, plane in enumerate("uvy"):
            count = int((tensors["hit_table_local_plane"] == i).sum())
            outputs[f"x_semantic_{plane}"] = np.full((count, 5), 0.2, np.float32)
            outputs[f"x_filter_{plane}"] = np.ones(count, np.float32)
        return outputs

    def close(self) -> None:
        pass


def test_a_display_that_cannot_be_written_ends_the_run_and_keeps_what_was_answered(
    tmp_path: Path,
) -> None:
    out, displays = tmp_path / "results.h5", tmp_path / "displays"
    displays.touch()
    connect: Any = Answers
    tally = send([EVENTS], MODEL, "http://x", connect, out=out, displays=displays)
    assert tally.ended is not None
    assert "cannot be written" in tally.ended.cause
    assert tally.ended.remedy == "choose another --display"
    assert tally.out == out
    assert out.stat().st_size > 0
