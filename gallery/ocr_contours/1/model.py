"""Finds lines of print in a picture: what has sharp edges, closed across the gaps of a line."""

import numpy as np
import triton_python_backend_utils as pb
from pictures import clockwise, cv2, decode  # cv2 as it is set up there

LONGER = 1000  # side of the picture that is looked at, in pixels
GAP = np.ones((3, 17), np.uint8)  # between letters and words
FAINTEST = 10  # of 255: paler edges are no print
MOST_LINES = 200


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Use one core: instances share them."""
        cv2.setNumThreads(1)

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        image = decode(pb.get_input_tensor_by_name(request, "picture").as_numpy()[0])
        if isinstance(image, str):
            error = pb.TritonError(image, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        return pb.InferenceResponse([pb.Tensor("image", image), pb.Tensor("boxes", lines(image))])


def lines(image: np.ndarray) -> np.ndarray:
    """Return the corners of lines [lines, 4, 2], from the top, clockwise from the upper left."""
    height, width = image.shape[:2]
    ratio = min(1.0, LONGER / max(height, width))
    sides = [max(1, round(side * ratio)) for side in (width, height)]
    small = cv2.resize(image, sides, interpolation=cv2.INTER_AREA)
    edges = cv2.morphologyEx(small, cv2.MORPH_GRADIENT, np.ones((3, 3), np.uint8)).max(axis=2)
    level, mask = cv2.threshold(edges, 0, 255, cv2.THRESH_OTSU)
    if level < FAINTEST:
        return np.zeros((0, 4, 2), np.float32)
    mask = cv2.morphologyEx(mask, cv2.MORPH_CLOSE, GAP)
    outlines, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for outline in outlines:
        centre, (w, h), angle = cv2.minAreaRect(outline)
        if min(w, h) >= 6 and max(w, h) >= 1.5 * min(w, h):
            corners = cv2.boxPoints((centre, (w + 3, h + 3), angle))
            found.append(clockwise(corners * np.float32([width / sides[0], height / sides[1]])))
    found.sort(key=lambda box: (round(box[0, 1] / 10), box[0, 0]))
    return np.array(found[:MOST_LINES], np.float32).reshape(-1, 4, 2)
