"""A model's reference event, with what to do about a bad one."""

from pathlib import Path

from deploy.host.errors import RepositoryError
from deploy.triton.card import AGAIN, of_repository
from numl_formats import golden
from numl_formats.golden import GoldenEvent
from numl_formats.repository import CARD_FILE, GOLDEN_FILE

_OWN = "write it with numlkit golden MODEL"


def read_golden(path: Path) -> GoldenEvent:
    """Read a ``golden.npz``; RepositoryError if it is none."""
    with of_repository(AGAIN if path.with_name(CARD_FILE).exists() else _OWN):
        return golden.read_golden(path)


def golden_of(folder: Path) -> GoldenEvent | None:
    """Return the reference event of the model in ``folder``, or None if it has none.

    Raises:
        RepositoryError: If the folder does not exist, or its file is not a reference event.
    """
    path = newest_version(folder) / GOLDEN_FILE
    return read_golden(path) if path.exists() else None


def newest_version(folder: Path) -> Path:
    """Return a model's version folder that answers a request that names none."""
    try:
        versions = [path for path in folder.iterdir() if path.name.isdecimal()]
    except OSError as error:
        raise RepositoryError(f"{folder}: {error.strerror}") from None
    return max(versions, key=lambda path: int(path.name), default=folder)
