"""The way to a device and back changes nothing.

On a CPU: the same copies and views, without the stream and the pinned memory of a GPU, which
cannot exist here.
"""

import numpy as np
import torch
from numl_serving.graph import build_graph
from numl_serving.networks import collate
from numl_serving.transfer import Transfer
from oracle import card_of, random_event


def test_a_batch_arrives_as_it_was():
    transfer, card, rng = Transfer(torch.device("cpu")), card_of("24.7.1"), np.random.default_rng(8)
    for sizes in ((40,), (300, 0, 5), (0,)):
        events = [random_event(rng, hits, schema=card.schema, positions=True) for hits in sizes]
        batch = collate([build_graph(event, card) for event in events], card)
        arrived = transfer.to_device(batch)
        assert arrived.plane_sizes == batch.plane_sizes
        for sent, found in zip(batch.tensors(), arrived.tensors(), strict=True):
            assert found.dtype == sent.dtype
            assert found.is_contiguous()
            torch.testing.assert_close(found, sent, rtol=0, atol=0)


def test_answers_come_back_by_name_and_stay_as_they_are():
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
