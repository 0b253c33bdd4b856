"""Finds hits in raw waveforms, and sends those of each 32 wires as soon as they are found."""

from collections.abc import Iterator

import numpy as np
import triton_python_backend_utils as pb

AT_ONCE = 32  # wires
MOST_WIRES, FEWEST_TICKS, MOST_TICKS = 10_000, 16, 20_000
MOST_SAMPLES = 80_000_000
SMOOTHING = np.exp(-0.5 * (np.arange(-6, 7) / 2.5) ** 2)  # a pulse's shape, in ticks
SMOOTHING /= SMOOTHING.sum()
THRESHOLD = 4  # in units of each wire's noise


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Publish how many responses are sent: Triton counts only requests."""
        self.family = pb.MetricFamily(  # ends with the last reference to it
            name="model_responses_total",
            description="Responses sent, of which a request may have several",
            kind=pb.MetricFamily.COUNTER,
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.sent = self.family.Metric(labels=labels)

    def execute(self, requests: list) -> None:
        """Send the responses to each request, then its end."""
        for request in requests:
            sender = request.get_response_sender()
            for response in responses(request):
                if sender.is_cancelled():  # the client has gone
                    break
                sender.send(response)
                self.sent.increment(1)
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)


def responses(request) -> Iterator:
    """Yield the responses to a request; or a single one, that says what is wrong with it."""
    waveforms = pb.get_input_tensor_by_name(request, "waveforms").as_numpy()
    wires, ticks = waveforms.shape
    if not 1 <= wires <= MOST_WIRES or not FEWEST_TICKS <= ticks <= MOST_TICKS:
        reason = (
            f"waveforms is {wires} x {ticks}; 1 to {MOST_WIRES} wires of {FEWEST_TICKS} to "
            f"{MOST_TICKS} ticks are read"
        )
        yield refusal(reason)
        return
    if wires * ticks > MOST_SAMPLES:
        reason = f"waveforms has {wires * ticks} samples; at most {MOST_SAMPLES} are read"
        yield refusal(reason)
        return
    for first in range(0, wires, AT_ONCE):
        wire, *others = find(waveforms[first : first + AT_ONCE])
        tensors = [pb.Tensor("wire", (first + wire).astype(np.int32))]
        for name, column in zip(("time", "integral", "rms"), others, strict=True):
            tensors.append(pb.Tensor(name, column.astype(np.float32)))
        yield pb.InferenceResponse(tensors)


def refusal(reason: str):
    """Return a response that refuses a request."""
    return pb.InferenceResponse(error=pb.TritonError(reason, pb.TritonError.INVALID_ARG))


def find(waveforms: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return wire, time, integral and rms of the hits in waveforms [wires, ticks].

    A hit is where a smoothed waveform stays above the threshold.
    """
    charge = waveforms - np.median(waveforms, axis=1, keepdims=True)
    smooth = np.stack([np.convolve(wire, SMOOTHING, "same") for wire in charge])
    noise = 1.48 * np.median(np.abs(smooth), axis=1, keepdims=True)  # pulses hardly change it
    above = np.pad(smooth > THRESHOLD * np.maximum(noise, 0.1), ((0, 0), (1, 1)))
    change = np.diff(above.astype(np.int8), axis=1)
    wire, begin = np.nonzero(change == 1)
    _, end = np.nonzero(change == -1)
    # The ticks of all hits one after the other, counted from the begin of each.
    length = end - begin
    place = length.cumsum() - length
    tick = np.arange(length.sum()) - place.repeat(length)
    height = smooth[wire.repeat(length), begin.repeat(length) + tick]
    integral, first, second = (np.add.reduceat(height * tick**n, place) for n in range(3))
    mean = first / integral
    return wire, begin + mean, integral, np.sqrt(second / integral - mean**2)
