"""From an event's hits to the image that the network sees."""

import numpy as np

SIZE = 96  # pixels
WIRES, TICKS = 4, 22  # of a pixel: 1.2 cm each


def image_of(
    plane: np.ndarray, wire: np.ndarray, time: np.ndarray, integral: np.ndarray
) -> np.ndarray:
    """Return the charge [3, 96, 96] around an event's middle: by plane, wire and time.

    Args: the columns of a hit table: plane 0 u, 1 v, 2 y; time in ticks; integral in ADC counts
    times ticks.
    """
    image = np.zeros((3, SIZE, SIZE), np.float32)
    if len(time) == 0:  # it has no middle
        return image
    column = pixel(time, middle(time, integral), TICKS)
    for number in range(3):
        hits = plane == number
        if not hits.any():
            continue
        row = pixel(wire[hits], middle(wire[hits], integral[hits]), WIRES)
        seen = (row >= 0) & (row < SIZE) & (column[hits] >= 0) & (column[hits] < SIZE)
        np.add.at(image[number], (row[seen], column[hits][seen]), integral[hits][seen])
    return image


def middle(place: np.ndarray, integral: np.ndarray) -> float:
    """Return where half of the charge lies on either side."""
    order = place.argsort()
    charge = integral[order].cumsum()
    return float(place[order][charge.searchsorted(charge[-1] / 2)])


def pixel(place: np.ndarray, centre: float, width: int) -> np.ndarray:
    """Return the number of the pixel that each place falls into; outside is possible."""
    return np.floor((place - centre) / width).astype(int) + SIZE // 2
