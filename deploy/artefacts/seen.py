"""What was verified last, for each key and place: nothing older is accepted any more."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from pathlib import Path

from deploy.artefacts.keys import Signer, fingerprint
from deploy.host.errors import SignatureError
from deploy.host.files import write_atomically
from deploy.host.paths import state_folder
from numl_formats.trust import Seen

_BEGUN = Seen("", 0, "")


def memory_of(place: str, signer: Signer) -> Path:
    """Return the file that says what was seen of a place with a key."""
    what = f"{fingerprint(signer)} {place}".encode(errors="surrogateescape")
    return state_folder() / "seen" / f"{hashlib.sha256(what).hexdigest()[:32]}.json"


def seen_at(place: str, signer: Signer) -> Seen | None:
    """Return what was remembered of a place that a key signs; None: nothing yet.

    Raises:
        SignatureError: It is damaged, so that an older one might be accepted.
    """
    seen = _read(place, signer)
    return seen if seen != _BEGUN else None


def has_begun(place: str, signer: Signer) -> bool:
    """Return whether the first statement of a place was about to be written, and none was seen."""
    return _read(place, signer) == _BEGUN


def begin(place: str, signer: Signer) -> None:
    """Remember that the first statement of a place is about to be written, from this host."""
    remember(place, signer, _BEGUN)


def _read(place: str, signer: Signer) -> Seen | None:
    memory = memory_of(place, signer)
    try:
        said = json.loads(memory.read_bytes())
        return Seen(str(said["line"]), int(said["sequence"]), str(said["sha256"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError):
        remedy = "remove it, if you trust what the place says now"
        raise SignatureError(f"{memory} is damaged", remedy) from None


def remember(place: str, signer: Signer, seen: Seen) -> None:
    if seen != _read(place, signer):
        said = {"place": place, "key": str(signer.path), **asdict(seen)}
        write_atomically(memory_of(place, signer), json.dumps(said, indent=1) + "\n")
