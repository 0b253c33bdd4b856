"""What both detectors need: a picture out of a file, and corners in order."""

import os

import numpy as np

MOST_PIXELS, LONGEST = 40_000_000, 32766  # pixels of a side, for OpenCV
os.environ["OPENCV_IO_MAX_IMAGE_PIXELS"] = str(MOST_PIXELS)  # read when OpenCV is imported
import cv2


def decode(content: bytes) -> np.ndarray | str:
    """Return a picture's pixels, or in one line why there are none."""
    try:
        image = cv2.imdecode(np.frombuffer(content, np.uint8), cv2.IMREAD_COLOR)
    except cv2.error:
        if not content:
            return "picture is empty"
        return f"picture is damaged, or has more than {MOST_PIXELS // 10**6} megapixels"
    if image is None:
        return "picture is none that OpenCV can read"
    height, width = image.shape[:2]
    if max(height, width) > LONGEST:
        return f"picture is {width} x {height}; at most {LONGEST} pixels a side are read"
    return image


def clockwise(corners: np.ndarray) -> np.ndarray:
    """Return a rectangle's corners clockwise in the picture, from the upper left."""
    left, right = np.split(corners[corners[:, 0].argsort()], 2)
    left, right = left[left[:, 1].argsort()], right[right[:, 1].argsort()]
    return np.stack([left[0], right[0], right[1], left[1]])
