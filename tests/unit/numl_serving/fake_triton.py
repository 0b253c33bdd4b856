"""A small fake of triton_python_backend_utils.

The real module works only inside a stub that a server has started, so the glue is tested against
this stand-in, which keeps to what the glue relies on: a sender takes one final response and
refuses any further one. The integration tests run the same glue in a real server.
"""

from __future__ import annotations

import threading
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import numpy as np

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonError(Exception):
    INTERNAL, INVALID_ARG, UNAVAILABLE, CANCELLED = (
        "internal",
        "invalid",
        "unavailable",
        "cancelled",
    )

    def __init__(self, message, code):
        super().__init__(message)
        self.code = code


class Tensor:
    def __init__(self, name, array):
        assert array.flags.c_contiguous
        self._name, self._array = name, array

    def name(self):
        return self._name

    def as_numpy(self):
        return self._array


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.error = error
        self.outputs = {tensor.name(): tensor.as_numpy() for tensor in output_tensors}


class Sender:
    """Records what is sent; the first ``failures`` attempts raise."""

    def __init__(self, failures=0):
        self.failures = failures
        self.answered = threading.Event()
        self.responses = []

    def send(self, response, flags):
        if self.failures:
            self.failures -= 1
            raise RuntimeError("Failed to increase the shared memory pool size")
        assert flags == TRITONSERVER_RESPONSE_COMPLETE_FINAL
        assert not self.responses, "Unable to send response. Response sender has been closed."
        self.responses.append(response)
        self.answered.set()


class Request:
    def __init__(self, tensors, outputs, *, cancelled=False, failures=0):
        self._tensors, self._outputs, self._cancelled = tensors, outputs, cancelled
        self.sender = Sender(failures)

    def inputs(self):
        return [Tensor(name, array) for name, array in self._tensors.items()]

    def requested_output_names(self):
        return self._outputs

    def is_cancelled(self):
        return self._cancelled

    def get_response_sender(self):
        return self.sender

    def answer(self):
        """Wait for the one response that the worker sends."""
        assert self.sender.answered.wait(10), "the request was never answered"
        (response,) = self.sender.responses
        return response


class MetricFamily:
    COUNTER, GAUGE = "counter", "gauge"
    values: ClassVar[Counter] = Counter()
    broken = False

    def __init__(self, name, description, kind):
        self.name, self.kind = name, kind

    def Metric(self, labels):  # noqa: N802
        if MetricFamily.broken:
            raise RuntimeError("metrics are not supported")
        key = (self.name, labels["model"], labels["version"])

        def change(value):
            if MetricFamily.broken:
                raise RuntimeError("metrics are gone")
            MetricFamily.values[key] += value

        return SimpleNamespace(increment=change, set=change)


class Logger:
    lines: ClassVar[list] = []
    told: ClassVar[list] = []

    @classmethod
    def log_error(cls, message):
        cls.lines.append(message)

    log_warn = log_error

    @classmethod
    def log_info(cls, message):
        cls.told.append(message)


class FakeRuntime:
    """Answers each hit with its own id, so that swapped answers show; raises where it is told to.

    An event whose first hit id is ``POISON`` makes the whole batch fail that holds it.
    """

    POISON = 666
    is_compiled = False

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()

    def infer(self, event):
        ids = event.hits.hit_id.astype(np.float32)
        return {"x_filter_u": ids, "x_semantic_u": np.stack([ids] * 7, axis=1)}

    def infer_batch(self, events):
        assert self.gate.wait(10)
        if any(len(event.hits) and event.hits.hit_id[0] == self.POISON for event in events):
            raise ValueError("poisoned\nsecond line")
        self.batches.append(len(events))
        return SimpleNamespace(
            outputs=[self.infer(event) for event in events], preprocess_s=0.25, network_s=0.5
        )
