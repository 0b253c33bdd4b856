"""One inference with known values; a fake stands for the server."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import pytest

from deploy.client.probe import Probe, smoke
from deploy.host.errors import KitError, LateError, RequestError, ServerAwayError
from deploy.triton.golden import GoldenEvent

GOLDEN = GoldenEvent({"x": np.ones(3, np.float32)}, {"y": np.ones(3, np.float32)})


class Fails:
    """A model that is ready, and answers no request."""

    def __init__(self, error: KitError) -> None:
        self.error = error

    def model_ready(self, _model: str) -> bool:
        return True

    def infer(self, *_: object) -> dict[str, Any]:
        raise self.error


@pytest.mark.parametrize(
    ("error", "ready"),
    [
        (LateError("no answer within 10 s"), False),
        (ServerAwayError("connection refused"), False),
        (RequestError("hit_table/rms row 3 is nan"), True),
    ],
)
def test_a_model_that_may_still_answer_is_not_ready_rather_than_wrong(
    monkeypatch: pytest.MonkeyPatch, error: KitError, ready: bool
) -> None:
    def connected(_self: Probe) -> AbstractContextManager[Any]:
        return nullcontext(Fails(error))

    monkeypatch.setattr(Probe, "connected", connected)
    result = smoke(Probe("http://127.0.0.1:1"), "m", GOLDEN)
    assert (result.ready, result.error) == (ready, error.cause)
