"""The way to a device and back changes nothing.

On a CPU: the same copies and views, without the stream and the pinned memory of a GPU, which
cannot exist here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from model_files import model_directory
from numl_serving.event import Event
from numl_serving.graph import build_graph
from numl_serving.networks.common import collate
from numl_serving.runtime import Runtime
from numl_serving.transfer import Transfer
from oracle import KINDS, NORMALISATION, random_event


def random_events(*hits: int) -> list[Event]:
    rng = np.random.default_rng(8)
    return [random_event(rng, count) for count in hits]


def test_a_batch_arrives_as_it_was() -> None:
    transfer = Transfer(torch.device("cpu"))
    for events in (random_events(40), random_events(300, 0, 5), random_events(0)):
        batch = collate([build_graph(event) for event in events], NORMALISATION)
        arrived = transfer.to_device(batch)
        for sent, found in zip(
            (*batch.features, *batch[1:]), (*arrived.features, *arrived[1:]), strict=True
        ):
            assert found.dtype == sent.dtype
            assert found.is_contiguous()
            torch.testing.assert_close(found, sent, rtol=0, atol=0)


def test_answers_come_back_by_name_and_stay_as_they_are() -> None:
    transfer = Transfer(torch.device("cpu"))
    outputs = {"a": torch.rand(3, 5), "b": torch.rand(0, 7), "c": torch.rand(4)}
    found = transfer.fetch(outputs)
    kept = {name: array.copy() for name, array in found.items()}
    transfer.fetch({name: tensor + 1 for name, tensor in outputs.items()})
    assert found.keys() == outputs.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, outputs[name].numpy())
        np.testing.assert_array_equal(array, kept[name])
        assert array.flags.c_contiguous


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_behind_a_transfer_answers_as_without(kind: str, tmp_path: Path) -> None:
    directory = model_directory(kind, tmp_path)
    near, far = Runtime.load(directory), Runtime.load(directory)
    far._transfer = Transfer(torch.device("cpu"))
    events = random_events(60, 0, 200)
    for one, other in zip(
        near.infer_batch(events).outputs, far.infer_batch(events).outputs, strict=True
    ):
        assert one.keys() == other.keys()
        for name, array in one.items():
            np.testing.assert_array_equal(other[name], array)
