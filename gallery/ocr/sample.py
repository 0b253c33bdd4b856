#!/usr/bin/env python3
"""Make sample.png: a page whose words are known, in several sizes, colours and directions.

python gallery/ocr/sample.py
"""

from pathlib import Path

HERE = Path(__file__).resolve().parent
LINES = (  # text, x and y of its lower left corner, size in points, degrees, colour
    ("Shift log of the liquid argon detector", 40, 60, 22, 0, "black"),
    ("Monday evening, run 18472", 40, 110, 15, 0, "0.2"),
    ("High voltage steady at 69.8 kV", 60, 170, 16, 0, "tab:blue"),
    ("Purity monitor reads 8.3 ms", 60, 215, 16, 0, "tab:blue"),
    ("Trigger rate 4.2 Hz, beam on since noon", 60, 260, 13, 0, "black"),
    ("Laser calibration postponed", 480, 175, 15, 0, "tab:red"),
    ("Replace the fan in rack 12", 480, 220, 15, 0, "tab:red"),
    ("CAUTION", 480, 400, 30, 12, "tab:orange"),
    ("cryogenic area", 500, 440, 17, 12, "tab:orange"),
    ("Events written: 31904", 60, 340, 18, -4, "tab:green"),
    ("Disk usage 73 percent", 66, 395, 18, -4, "tab:green"),
    ("small print is readable too, up to a point", 60, 470, 10, 0, "0.4"),
)


def words() -> list[str]:
    """Return the words of the sample."""
    return [word for text, *_ in LINES for word in text.split()]


def main() -> None:
    """Draw the page."""
    import matplotlib.pyplot as plt

    plt.rcParams["font.family"] = ["DejaVu Sans"]
    figure = plt.figure(figsize=(8, 5), dpi=100, facecolor="#f7f4ec")
    for text, x, y, size, degrees, colour in LINES:
        place = (x / 800, 1 - y / 500)
        figure.text(*place, text, size=size, rotation=degrees, color=colour, va="baseline")
    figure.savefig(HERE / "sample.png")


if __name__ == "__main__":
    main()
