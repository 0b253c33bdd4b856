"""The PyTorch engine when things fail. There is no GPU here: torch's words on one are played."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from numl_serving import torch_runtime
from numl_serving.batches import Limits
from numl_serving.errors import DeviceLostError, EventError, ModelFilesError
from numl_serving.torch_runtime import TorchEngine, gpu_of
from small_models import NUGRAPH3, make_event, random_event, random_weights

ILLEGAL = "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be"
EVENTS = [random_event(hits, hits) for hits in (10, 20, 30, 40)]


class Network(torch.nn.Module):
    """A network that fails for more than so many hits, and remembers what it was given."""

    def __init__(self, network: torch.nn.Module, largest: int, message: str) -> None:
        super().__init__()
        self.network, self.largest, self.message = network, largest, message
        self.seen: list[weakref.ref[Any]] = []

    def forward(self, batch: Any) -> Any:
        gc.disable()  # what is freed is freed by the engine, or because nothing holds it
        assert not any(seen() is not None for seen in self.seen), "a failed batch is alive"
        if len(batch.features) > self.largest:
            self.seen.append(weakref.ref(batch.features))
            raise RuntimeError(self.message)
        return self.network(batch)


def engine(largest: int, message: str = "CUDA out of memory") -> tuple[TorchEngine, Network]:
    made = TorchEngine(NUGRAPH3, random_weights(NUGRAPH3), "cpu", None, Limits())
    failing = Network(made._network, largest, message)
    made._network = failing
    return made, failing


@pytest.fixture(autouse=True)
def _collect_garbage_again():
    yield
    gc.enable()


def test_what_did_not_fit_is_run_in_halves_and_nothing_of_it_is_alive():
    failing, network = engine(largest=60)
    result = failing.run(EVENTS)
    assert all(isinstance(outputs, dict) for outputs in result.outputs)
    assert [len(outputs["x_filter_u"]) for outputs in result.outputs] == [
        int((event.hit("local_plane") == 0).sum()) for event in EVENTS
    ]
    assert len(network.seen) == 2  # all four, then the last two
    assert result.batches == 3


class PlayedGpu:
    """What torch says of a GPU."""

    type = "cuda"
    __str__ = lambda self: "cuda:0"  # noqa: E731


def play(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> tuple[TorchEngine, list[str]]:
    """Return an engine whose GPU answers every further call with an error, if there is one."""
    failing, _ = engine(largest=60, message=ILLEGAL)
    calls: list[str] = []

    def synchronize(device: Any) -> None:
        calls.append("synchronize")
        if error is not None:
            raise error

    monkeypatch.setattr(failing, "_device", PlayedGpu())
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *size, device=None: zeros(*size))
    return failing, calls


def test_a_gpu_that_answers_with_its_last_error_for_ever_is_lost(monkeypatch):
    failing, calls = play(monkeypatch, RuntimeError(ILLEGAL))
    ids = {"hit_id": np.full(1000, 7), "triplets": [(7, -1, -1)] * 10}
    exploding = make_event(np.zeros(1000), range(1000), range(1000), **ids)
    outputs = failing.run([*EVENTS, exploding]).outputs
    assert calls == ["empty_cache", "synchronize"]
    for lost in outputs[:4]:
        assert isinstance(lost, DeviceLostError)
        assert str(lost) == (
            "cuda:0 is no longer usable (RuntimeError: CUDA error: an illegal memory access "
            "was encountered)"
        )
    assert isinstance(outputs[4], EventError)


@pytest.mark.parametrize("error", [None, torch.OutOfMemoryError("others have it all")])
def test_a_gpu_that_works_or_is_only_full_is_not_lost(monkeypatch, error):
    failing, calls = play(monkeypatch, error)
    assert all(isinstance(outputs, dict) for outputs in failing.run(EVENTS).outputs)
    assert calls == ["empty_cache", "synchronize"] * 2


def test_threads_are_set_only_where_they_are_given():
    before = torch.get_num_threads()
    try:
        weights = random_weights(NUGRAPH3)
        TorchEngine(NUGRAPH3, weights, "cpu", before + 1, Limits())
        assert torch.get_num_threads() == before + 1
        TorchEngine(NUGRAPH3, weights, "cpu", None, Limits())
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("cuda", "said"),
    [
        (
            None,
            " cannot use a GPU: deploy with the GPU environment or set KIND_CPU in config.pbtxt's "
            "instance_group",
        ),
        # What CUDA says when the driver is too old is the same as when there is no GPU.
        (
            "13.0",
            " for CUDA 13.0 finds no usable GPU: the host's driver is too old for it (nvidia-smi), "
            "or the server was given no GPU (CUDA_VISIBLE_DEVICES)",
        ),
    ],
    ids=["a torch for CPUs", "no driver for its CUDA"],
)
def test_a_gpu_that_cannot_be_used_is_told_with_all_reasons(monkeypatch, cuda, said):
    monkeypatch.setattr("torch.version.cuda", cuda)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModelFilesError) as caught:
        gpu_of("0")
    assert str(caught.value) == f"the instance is of KIND_GPU but torch {torch.__version__}{said}"


def test_a_gpu_is_named_as_torch_names_it(monkeypatch):
    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    assert gpu_of("3") == "cuda:3"


def test_instances_are_those_of_the_clustering_in_the_order_of_the_request(monkeypatch):
    def each_its_own(coordinates: Any, eps: float, min_samples: int) -> Any:
        return np.arange(len(coordinates), dtype=np.int32)

    monkeypatch.setattr(torch_runtime, "cluster", each_its_own)
    made = TorchEngine(NUGRAPH3, random_weights(NUGRAPH3), "cpu", None, Limits())
    (outputs,) = made.run(EVENTS[3:]).outputs
    assert isinstance(outputs, dict)
    labels = np.empty(40, np.int32)
    plane = EVENTS[3].hit("local_plane")
    for index, name in enumerate(NUGRAPH3.planes):
        labels[plane == index] = outputs[f"x_i_{name}"]
    found = labels[labels >= 0]
    assert len(found) > 0
    assert found.tolist() == list(range(len(found)))
