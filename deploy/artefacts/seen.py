"""What was verified last, for each key and place: nothing older is accepted any more."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from deploy.artefacts.keys import Signer, fingerprint
from deploy.host.files import write_atomically
from deploy.host.paths import state_folder
from numl_formats.trust import Seen


def seen_at(place: str, signer: Signer) -> Seen | None:
    """Return what was remembered of a place that a key signs; None: nothing yet."""
    try:
        said = json.loads(_path(place, signer).read_text(encoding="utf-8"))
        return Seen(str(said["line"]), int(said["sequence"]), str(said["sha256"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def remember(place: str, signer: Signer, seen: Seen) -> None:
    """Remember the newest statement of a place that was verified with a key."""
    if seen == seen_at(place, signer):
        return
    said = {
        "place": place,
        "key": str(signer.path),
        "line": seen.line,
        "sequence": seen.sequence,
        "sha256": seen.sha256,
    }
    write_atomically(_path(place, signer), json.dumps(said, indent=1) + "\n")


def _path(place: str, signer: Signer) -> Path:
    name = hashlib.sha256(f"{fingerprint(signer)} {place}".encode()).hexdigest()[:32]
    return state_folder() / "seen" / f"{name}.json"
