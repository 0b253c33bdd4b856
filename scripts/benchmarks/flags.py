"""Types of the benchmarks' options, checked before anything is measured."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from deploy.host.command_line import count_to

FIGURES = (".png", ".pdf", ".svg")
FEWEST_HITS = 60  # 20 in each plane, or pynuml drops the event
as_count = count_to(1_000_000)


def as_names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def as_cores(text: str) -> tuple[int, ...]:
    usable = os.sched_getaffinity(0)
    given = text.split(",")
    if not all(each.isdecimal() and int(each) in usable for each in given):
        some = ",".join(map(str, sorted(usable)))
        raise argparse.ArgumentTypeError(f"'{text}' is not a subset of the cores {some}")
    return tuple(map(int, given))


def as_hits(text: str) -> int:
    if as_count(text) < FEWEST_HITS:
        raise argparse.ArgumentTypeError(f"events need at least {FEWEST_HITS} hits, not {text}")
    return int(text)


def as_output(text: str) -> Path:
    path = Path(text)
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return path


def as_figure(text: str) -> Path:
    if not text.endswith(FIGURES):
        raise argparse.ArgumentTypeError(f"{text} does not end with any of {', '.join(FIGURES)}")
    return as_output(text)
