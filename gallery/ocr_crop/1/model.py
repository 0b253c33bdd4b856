"""Cuts lines out of a picture: upright, 48 pixels high, padded to the width of the widest."""

import cv2
import numpy as np
import triton_python_backend_utils as pb

HEIGHT, WIDTHS, WIDEST = 48, 160, 1600  # widths are multiples, so that lines can be batched
MOST_LINES = 200  # as the detectors find
LONGEST = 32766  # pixels of a side, for OpenCV
MOST_COVER = 8  # times the area of the picture, by all lines together
LEAST_PIXELS = 1_000_000  # of a picture, for that


class TritonPythonModel:
    """What Triton starts."""

    def initialize(self, args: dict[str, str]) -> None:
        """Use one core: instances share them."""
        cv2.setNumThreads(1)

    def execute(self, requests: list) -> list:
        """Answer each request, or say what is wrong with it."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        image = pb.get_input_tensor_by_name(request, "image").as_numpy()
        boxes = pb.get_input_tensor_by_name(request, "boxes").as_numpy()
        wrong = what_is_wrong(image, boxes)
        if wrong is not None:
            error = pb.TritonError(wrong, pb.TritonError.INVALID_ARG)
            return pb.InferenceResponse(error=error)
        lines = [cut(image, box) for box in boxes]
        widths = np.array([line.shape[1] for line in lines], np.int32)
        widest = -(-int(widths.max(initial=1)) // WIDTHS) * WIDTHS
        crops = np.zeros((len(lines), 3, HEIGHT, widest), np.float32)
        for crop, line in zip(crops, lines, strict=True):
            crop[:, :, : line.shape[1]] = (line.astype(np.float32) / 127.5 - 1).transpose(2, 0, 1)
        return pb.InferenceResponse([pb.Tensor("crops", crops), pb.Tensor("widths", widths)])


def what_is_wrong(image: np.ndarray, boxes: np.ndarray) -> str | None:
    """Return in one line why lines cannot be cut out, or None."""
    height, width = image.shape[:2]
    if not image.size:
        return "image is empty"
    if max(height, width) > LONGEST:
        return f"image is {width} x {height}; at most {LONGEST} pixels a side are read"
    if len(boxes) > MOST_LINES:
        return f"boxes has {len(boxes)} lines; at most {MOST_LINES} are read"
    if not np.isfinite(boxes).all():
        return "boxes has values that are not finite"
    if (np.abs(boxes - [width / 2, height / 2]) > 1.5 * max(height, width)).any():
        return "boxes has corners that are far outside of image"
    across, down = (np.linalg.norm(boxes[:, 0] - boxes[:, n], axis=1) for n in (1, 3))
    if (across * down).sum() > MOST_COVER * max(width * height, LEAST_PIXELS):
        return f"boxes together have more than {MOST_COVER} times the area of image"
    return None


def cut(image: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return what is in a box (corners clockwise from the upper left), turned if it is upright."""
    across = max(np.linalg.norm(box[0] - box[1]), np.linalg.norm(box[2] - box[3]))
    down = max(np.linalg.norm(box[0] - box[3]), np.linalg.norm(box[1] - box[2]))
    if down >= 1.5 * across:
        box, across, down = np.roll(box, -1, axis=0), down, across
    width = int(np.clip(np.ceil(HEIGHT * across / max(down, 1)), 8, WIDEST))
    scale = max(1, round(down / HEIGHT))  # what is larger is shrunk afterwards, by averaging
    scale = min(scale, LONGEST // max(width, HEIGHT))
    w, h = scale * width, scale * HEIGHT
    turn = cv2.getPerspectiveTransform(box, np.float32([[0, 0], [w, 0], [w, h], [0, h]]))
    # Cubic: with blurred letters the network loses the blanks between words.
    line = cv2.warpPerspective(
        image, turn, (w, h), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    return cv2.resize(line, (width, HEIGHT), interpolation=cv2.INTER_AREA)
