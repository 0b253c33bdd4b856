"""Fits the lifetime of drifting electrons to all hits that a run has sent so far."""

from collections import OrderedDict

import numpy as np
import triton_python_backend_utils as pb

MOST_RUNS = 64  # as in config.pbtxt
TICK = 0.0005  # ms


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Begin without runs."""
        self.runs: OrderedDict[int | str, np.ndarray] = OrderedDict()

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        start, end, time, charge = (
            pb.get_input_tensor_by_name(request, name).as_numpy()
            for name in ("START", "END", "time", "charge")
        )
        # Not by a control input: Triton copies a client's text of any length into its 8 bytes.
        run = request.correlation_id()
        before = self.runs.pop(run, None)
        sums = np.zeros(6) if start[0] else before
        if sums is None:
            return refusal("nothing is known of this run any more: begin it anew")
        wrong = what_is_wrong(time, charge)
        if wrong is None:
            sums = sums + sums_of(TICK * time.astype(float), np.log(charge.astype(float)))
        if not end[0]:
            self.runs[run] = sums
        if len(self.runs) > MOST_RUNS:  # the one that was silent longest never sent its end
            self.runs.popitem(last=False)
        if wrong is not None:
            return refusal(wrong)
        lifetime, error = fit(sums)
        return pb.InferenceResponse(
            [
                pb.Tensor("lifetime", np.array([lifetime], np.float32)),
                pb.Tensor("error", np.array([error], np.float32)),
                pb.Tensor("hits", np.array([sums[0]], np.int64)),
            ]
        )


def refusal(reason: str):
    """Return an answer that refuses a request."""
    return pb.InferenceResponse(error=pb.TritonError(reason, pb.TritonError.INVALID_ARG))


def what_is_wrong(time: np.ndarray, charge: np.ndarray) -> str | None:
    """Return in one line why an event cannot be added, or None."""
    if len(time) != len(charge):
        return f"time has {len(time)} hits, charge {len(charge)}"
    if not np.isfinite(time).all() or (time < 0).any():
        return "time has values that are negative or not finite"
    if not np.isfinite(charge).all() or (charge <= 0).any():
        return "charge has values that are not positive or not finite"
    return None


def sums_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return all that a straight line's fit needs to know of points: it can be added up."""
    return np.array([len(x), x.sum(), y.sum(), x @ x, x @ y, y @ y])


def fit(sums: np.ndarray) -> tuple[float, float]:
    """Return lifetime and error (ms) by the slope of log(charge) over time (ms); or NaN.

    The slope is -1 / lifetime. NaN, if that is not positive or cannot be told yet.
    """
    n, x, y, xx, xy, yy = sums
    if n < 3:
        return np.nan, np.nan
    # Sums that cancel leave some rounding, which is neither a spread nor a slope.
    spread = xx - x * x / n
    if spread <= 1e-12 * xx:
        return np.nan, np.nan
    slope = (xy - x * y / n) / spread
    if -slope * np.sqrt(spread) <= 1e-7 * np.sqrt(yy):
        return np.nan, np.nan
    scatter = max(yy - y * y / n - slope**2 * spread, 0) / (n - 2)
    return -1 / slope, np.sqrt(scatter / spread) / slope**2
