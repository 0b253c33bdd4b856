"""Finds lines of text in a picture, by differentiable binarisation (arXiv:1911.08947)."""

import os
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnxruntime
import triton_python_backend_utils as pb
from pictures import clockwise, cv2, decode  # cv2 as it is set up there

NETWORK = "models/ch_PP-OCRv4_det_infer.onnx"
SHORTER, LONGER = 736, 2000  # sides of the picture that the network sees, in pixels
TEXT, LINE = 0.3, 0.5  # least probability of a pixel, and mean probability of a line
GROWTH = 1.6  # the network marks the middle of a line only
MOST_LINES = 200


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the network that the environment holds."""
        package = Path(find_spec("rapidocr_onnxruntime").origin).parent  # found, not imported
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = int(os.environ.get("OMP_NUM_THREADS", "1"))
        self.session = onnxruntime.InferenceSession(package / NETWORK, options)

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        image = decode(pb.get_input_tensor_by_name(request, "picture").as_numpy()[0])
        if isinstance(image, str):
            error = pb.TritonError(image, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        seen, scale = shrink(image)
        blob = (seen.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)[None]
        (probability,) = self.session.run(None, {"x": blob})
        boxes = find_lines(probability[0, 0], scale)
        return pb.InferenceResponse([pb.Tensor("image", image), pb.Tensor("boxes", boxes)])


def shrink(image: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a picture as the network wants it, and what its pixels are in the original (x, y)."""
    height, width = image.shape[:2]
    ratio = max(1.0, SHORTER / min(height, width))
    ratio = min(ratio, LONGER / max(height, width))
    sides = [max(32, round(side * ratio / 32) * 32) for side in (width, height)]
    return cv2.resize(image, sides), np.float32([width / sides[0], height / sides[1]])


def find_lines(probability: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return the corners of lines [lines, 4, 2], from the top, clockwise from the upper left."""
    mask = cv2.dilate((probability > TEXT).astype(np.uint8), np.ones((2, 2), np.uint8))
    outlines, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for outline in outlines:
        centre, (width, height), angle = cv2.minAreaRect(outline)
        if min(width, height) < 3:
            continue
        x, y, w, h = cv2.boundingRect(outline)
        inside = np.zeros((h, w), np.uint8)
        cv2.fillPoly(inside, [outline - (x, y)], 1)
        if cv2.mean(probability[y : y + h, x : x + w], inside)[0] < LINE:
            continue
        grown = GROWTH * width * height / (width + height)  # twice area / circumference
        corners = cv2.boxPoints((centre, (width + grown, height + grown), angle))
        found.append(clockwise(corners * scale))
    found.sort(key=lambda box: (round(box[0, 1] / 10), box[0, 0]))
    return np.array(found[:MOST_LINES], np.float32).reshape(-1, 4, 2)
