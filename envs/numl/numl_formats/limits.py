"""Limits on what an image's models accept, as the environment of its server sets them.

``NUML_WAITING`` (requests that wait for each instance), ``NUML_WAIT_S`` (seconds that one waits)
and ``NUML_HITS`` (of an event) take the place of what the image was built with; docs/load.md
explains them. ::

    python -m numl_formats.limits MODELS FOLDER
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from numl_formats.errors import FormatError
from numl_formats.repository import CARD_FILE, CONFIG

MAX_HITS, MOST_WAITING, LONGEST_WAIT = "max_hits", "most_waiting", "longest_wait_s"
"""Parameters of a model's configuration; the last two are for GPUs."""
WAITING, WAIT_S, HITS = (0, 1_000_000), (0, 3600), (1, 100_000)
"""What may be set, from and to."""

_COUNT = re.compile(r"^instance_group \{\n  count: (\d+)$", re.MULTILINE)
_WAITING = re.compile(r"(\n *max_queue_size:) \d+")
_WAIT = re.compile(r"(\n *default_timeout_microseconds:) \d+")


@dataclass(frozen=True, slots=True)
class Limits:
    """None: as the image was built."""

    waiting: int | None = None
    wait_s: float | None = None
    hits: int | None = None

    @classmethod
    def of(cls, variables: Mapping[str, str]) -> Limits:
        """Return the limits that environment variables set.

        Raises:
            FormatError: One is no number, or out of range.
        """
        waiting = _number(variables, "NUML_WAITING", *WAITING)
        hits = _number(variables, "NUML_HITS", *HITS)
        return cls(
            waiting=None if waiting is None else int(waiting),
            wait_s=_number(variables, "NUML_WAIT_S", *WAIT_S, whole=False),
            hits=None if hits is None else int(hits),
        )

    def apply(self, config: str) -> str:
        """Return a configuration of a model of the kit, which may be a template, with the limits.

        On a GPU they are parameters, on CPUs the policy of Triton's queue; 0 takes a bound off.
        """
        found = _COUNT.search(config)
        instances = int(found[1]) if found else 1
        if self.waiting is not None:
            most = self.waiting * instances
            config = _WAITING.sub(rf"\1 {most}" if most else "", config)
            config = _parameter(config, MOST_WAITING, str(self.waiting))
        if self.wait_s is not None:
            longest = int(self.wait_s * 1e6)
            config = _WAIT.sub(rf"\1 {longest}" if longest else "", config)
            config = _parameter(config, LONGEST_WAIT, f"{self.wait_s:g}")
        if self.hits is not None:
            config = _parameter(config, MAX_HITS, str(self.hits))
        return config


AS_BUILT = Limits()


def _number(
    variables: Mapping[str, str], name: str, least: int, most: int, *, whole: bool = True
) -> float | None:
    text = variables.get(name, "")
    if not text:
        return None
    if re.fullmatch(r"\d+" if whole else r"\d+(\.\d+)?", text, re.ASCII):
        value = float(text)
        if least <= value <= most:
            return value
    kind = "a whole number" if whole else "a number"
    raise FormatError(f"{name}={text}: it must be {kind} from {least} to {most}")


def _parameter(config: str, key: str, value: str) -> str:
    place = rf'(key: "{key}"\n  value \{{\n    string_value: )"[^"]*"'
    return re.sub(place, rf'\1"{value}"', config)


def limited_copy(models: Path, folder: Path, limits: Limits) -> None:
    """Fill ``folder``, which is empty, with links to a repository's files and its own settings.

    A site's own models, which have no card, keep what their configurations say.
    """
    for model in sorted(models.iterdir()):
        (folder / model.name).mkdir()
        for part in sorted(model.iterdir()):
            (folder / model.name / part.name).symlink_to(part)
        if not any(model.glob(f"*/{CARD_FILE}")):
            continue
        config = folder / model.name / CONFIG
        text = config.read_text(encoding="utf-8")
        config.unlink()
        config.write_text(limits.apply(text), encoding="utf-8")


if __name__ == "__main__":
    try:
        limited_copy(Path(sys.argv[1]), Path(sys.argv[2]), Limits.of(os.environ))
    except FormatError as error:
        sys.exit(f"serve: {error}")
