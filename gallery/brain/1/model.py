"""Calls brain_locate with the whole volume, then brain_segment with the part that has the brain."""

import numpy as np
import triton_python_backend_utils as pb
from volumes import brightness, cube, resample

COARSE, FINE = 32, 64  # sides of what the two networks see, in voxels
FEWEST, MOST = 16, 400
MARGIN = 0.1  # around what brain_locate found, of its size


class TritonPythonModel:
    """What Triton starts."""

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        volume = pb.get_input_tensor_by_name(request, "volume").as_numpy()
        wrong = what_is_wrong(volume)
        if wrong is not None:
            return refusal(wrong)
        try:
            mask, box = segment(volume)
        except NoAnswerError as failed:
            return pb.InferenceResponse(error=failed.args[0])
        return pb.InferenceResponse([pb.Tensor("mask", mask), pb.Tensor("box", box)])


def segment(volume: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mask of a volume, uint8 of its shape, and the box [3, 2] that was looked at."""
    low, high = brightness(volume)
    mask = np.zeros(volume.shape, np.uint8)

    def ask(model: str, places: list[np.ndarray]) -> np.ndarray:
        seen = resample(volume, places, places[0][1] - places[0][0]).astype(float)
        return call(model, np.clip((seen - low) / (high - low), 0, 1).astype(np.float32))

    whole = cube(np.array([[0, side] for side in volume.shape]), COARSE)
    found = ask("brain_locate", whole) > 0.5
    if not found.any():
        return mask, np.zeros((3, 2), np.int32)
    box = np.array(
        [
            (along[where.min()], along[where.max()])
            for along, where in zip(whole, found.nonzero(), strict=True)
        ]
    )
    room = (MARGIN * np.ptp(box, axis=1)).max() + np.diff(whole[0][:2])
    box = np.stack([box[:, 0] - room, box[:, 1] + room], axis=1)
    places = cube(box, FINE)
    probability = ask("brain_segment", places)
    inside = np.clip(box.round(), 0, np.array(volume.shape)[:, None]).astype(np.int32)
    # Where the voxels of the box are, counted in those that the network saw.
    step = places[0][1] - places[0][0]
    back = [
        (np.arange(*ends) - along[0]) / step for ends, along in zip(inside, places, strict=True)
    ]
    part = tuple(slice(*ends) for ends in inside)
    mask[part] = resample(probability, back, 1 / step) > 0.5
    return mask, inside


def what_is_wrong(volume: np.ndarray) -> str | None:
    """Return in one line why a volume cannot be segmented, or None."""
    if not FEWEST <= min(volume.shape) <= max(volume.shape) <= MOST:
        shape = " x ".join(map(str, volume.shape))
        return f"volume is {shape}; each side must have {FEWEST} to {MOST} voxels"
    if not np.isfinite(volume).all():
        return "volume has values that are not finite"
    return None


class NoAnswerError(Exception):
    """What a model says instead of an answer."""


def call(model: str, volume: np.ndarray) -> np.ndarray:
    """Return what a model makes of a volume; raise what it says instead."""
    asked = pb.InferenceRequest(
        model_name=model,
        inputs=[pb.Tensor("volume", volume)],
        requested_output_names=["probability"],
    )
    answer = asked.exec()
    if answer.has_error():
        raise NoAnswerError(answer.error())
    return pb.get_output_tensor_by_name(answer, "probability").as_numpy()


def refusal(reason: str):
    """Return an answer that refuses a request."""
    return pb.InferenceResponse(error=pb.TritonError(reason, pb.TritonError.INVALID_ARG))
