"""A small fake of triton_python_backend_utils.

The real module works only inside a stub that a server has started, so the glue is tested against
this stand-in, which keeps to what the glue relies on: a sender takes one final response and
refuses any further one. The integration tests run the same glue in a real server.
"""

import threading
from collections import Counter
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
from numl_serving import dlpack
from numl_serving.answer import BatchResult
from numl_serving.errors import DeviceLostError, EventError, NetworkError
from small_models import NUGRAPH3

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
    """Made of an array here; numpy's own functions for that are those which Triton misreads."""

    def __init__(self, name, array):
        self._name, self._array = name, array

    @classmethod
    def from_dlpack(cls, name, capsule):
        array = np.from_dlpack(_Of(capsule))
        assert array.flags.c_contiguous
        return cls(name, array)

    def name(self):
        return self._name

    def to_dlpack(self):
        return dlpack._capsule(self._array)[0]


class _Of:
    def __init__(self, capsule):
        self._capsule = capsule

    def __dlpack__(self, **_given):
        return self._capsule

    def __dlpack_device__(self):
        return (1, 0)


class InferenceResponse:
    def __init__(self, output_tensors=(), error=None):
        self.error = error
        self.outputs = {tensor.name(): tensor._array for tensor in output_tensors}


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
        self.told("answered", response.error)
        self.answered.set()

    @staticmethod
    def told(*words):
        """Do nothing; a test that looks at a process from outside has it print."""


class Request:
    def __init__(self, tensors, outputs, *, cancelled=False, failures=0, timeout=0):
        self._tensors, self._outputs, self._cancelled = tensors, outputs, cancelled
        self._timeout = timeout
        self.sender = Sender(failures)
        self.was_taken = False

    def inputs(self):
        return [Tensor(name, array) for name, array in self._tensors.items()]

    def requested_output_names(self):
        return self._outputs

    def is_cancelled(self):
        return self._cancelled

    def timeout(self):
        """Return the request parameter (microseconds), 0 without."""
        return self._timeout

    def get_response_sender(self):
        self.was_taken = True
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

        def put(value):
            if MetricFamily.broken:
                raise RuntimeError("metrics are gone")
            MetricFamily.values[key] = value

        return SimpleNamespace(increment=lambda n: put(MetricFamily.values[key] + n), set=put)


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
    """Answers each hit with its own id, so that swapped answers show.

    The first hit id of an event says what happens to it: ``EXPLODES`` is refused, ``FAILS`` meets
    something unforeseen, after ``LOST`` nothing is answered any more, and ``BUG`` raises.
    """

    EXPLODES, FAILS, LOST, BUG = 601, 602, 603, 604
    card = NUGRAPH3

    def __init__(self):
        self.batches = []
        self.gate = threading.Event()
        self.gate.set()
        self.reached = threading.Event()

    def infer(self, event):
        (outputs,) = self.infer_batch([event]).outputs
        return outputs

    def infer_batch(self, events):
        self.reached.set()
        assert self.gate.wait(10)
        first_ids = [next(iter(event.hit("hit_id")), 0) for event in events]
        if self.BUG in first_ids:
            raise ZeroDivisionError("a bug")
        self.batches.append(len(events))
        outputs = []
        for first_id, event in zip(first_ids, events, strict=True):
            if self.LOST in first_ids:
                outputs.append(DeviceLostError("cuda:0 cannot be used any more"))
            elif first_id == self.EXPLODES:
                outputs.append(EventError("the event unfolds into too many edges"))
            elif first_id == self.FAILS:
                outputs.append(NetworkError("ValueError: poisoned", "Traceback: in the network"))
            else:
                ids = event.hit("hit_id").astype(np.float32)
                outputs.append({"x_filter_u": ids, "x_semantic_u": np.stack([ids] * 3, axis=1)})
        return BatchResult(outputs, batches=1, preprocess_s=0.25, network_s=0.5)
