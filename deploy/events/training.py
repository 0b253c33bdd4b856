"""The figures of a training, to stand beside those of an evaluation."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deploy.host.errors import ClientError

_SPLITS = ("test", "val")
_MOST = sys.float_info.max
# recall_semantic/test (25.4 and before) and semantic/recall-test (since) are one figure.
_SINCE = re.compile(r"(\w+)/([\w-]+)-(\w+)")
_BEFORE = re.compile(r"(recall|precision|f1)_(\w+)/(\w+)")
_VERTEX_BEFORE = re.compile(r"vertex-resolution(?:-([xyz]))?/(\w+)")


def read_training(path: Path) -> Mapping[str, Any]:
    """Read the figures of a training: what nugraph logged, or an earlier answer of evaluate.

    Returns:
        ``metrics`` by the main branch's names without the split; of an earlier answer also
        ``planes`` and the heads, with their classes.

    Raises:
        ClientError: There are none in it.
    """
    try:
        content = json.loads(path.read_text())
    except (OSError, RecursionError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not JSON"
        raise ClientError(f"--training {path}: {reason}") from error
    if isinstance(content, dict) and isinstance(content.get("metrics"), dict):
        return content | {"metrics": _numbers(content["metrics"])}
    logged: dict[str, Any] = {}
    for each in content if isinstance(content, list) else [content]:
        logged |= each if isinstance(each, dict) else {}
    for split in _SPLITS:
        named = {name: value for each, value in logged.items() if (name := _metric(each, split))}
        if metrics := _numbers(named):
            return {"metrics": metrics}
    raise ClientError(
        f"--training {path} holds no figures of a test or validation",
        "give what Lightning's trainer.test returns, as JSON, or an answer of evaluate --json",
    )


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return those that are numbers: a training that diverged logs NaN, which JSON has not."""
    return {
        name: float(value)
        for name, value in figures.items()
        if isinstance(value, int | float) and abs(value) <= _MOST
    }


def _metric(logged: str, split: str) -> str | None:
    """Return the main branch's name of a figure, without the split."""
    if (found := _SINCE.fullmatch(logged)) and found[3] == split:
        return f"{found[1]}/{found[2]}"
    if (found := _BEFORE.fullmatch(logged)) and found[3] == split:
        return f"{found[2]}/{found[1]}"
    if (found := _VERTEX_BEFORE.fullmatch(logged)) and found[2] == split:
        return f"vertex/{found[1]}-resolution" if found[1] else "vertex/resolution"
    return None


def check_training(
    training: Mapping[str, Any], planes: Sequence[str], classes: Mapping[str, Sequence[str]]
) -> None:
    """Raise ClientError if the figures are of other planes, or of other classes of a head."""
    pairs = {"planes": (training.get("planes"), planes)}
    for kind, names in classes.items():
        theirs = training.get(kind)
        told = theirs.get("classes") if isinstance(theirs, dict) else None
        pairs[f"{kind} classes"] = (told if names else None, names)
    for what, (told, ours) in pairs.items():
        if told is not None and told != list(ours):
            said = ", ".join(map(str, told)) if isinstance(told, list) else told
            raise ClientError(
                f"--training has the {what} {said}, "
                f"this evaluation {', '.join(ours)}: they cannot be compared"
            )
