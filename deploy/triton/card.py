"""A model's card and weights, with what to do about bad ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from deploy.host.errors import RepositoryError
from deploy.host.files import sha256_of
from numl_formats import cardfile
from numl_formats.card import ModelCard
from numl_formats.errors import FormatError, NewerFormatError
from numl_formats.repository import CARD_FILE

AGAIN = (
    "restore it with git checkout, or import the checkpoint again (scripts/import_checkpoint.py)"
)
_COPY = "copy both files again, or import the checkpoint again (scripts/import_checkpoint.py)"


@contextmanager
def of_repository(remedy: str = AGAIN) -> Iterator[None]:
    """Make a `RepositoryError` of what `numl_formats` says of a file."""
    try:
        yield
    except NewerFormatError as error:
        raise RepositoryError(str(error)) from None
    except FormatError as error:
        raise RepositoryError(str(error), remedy) from None


def read_card(folder: Path) -> ModelCard:
    with of_repository():
        return cardfile.read_card(folder / CARD_FILE)


def check_digest(weights: Path, sha256: str) -> None:
    try:
        found = sha256_of(weights)
    except OSError as error:
        raise RepositoryError(f"{weights}: {error.strerror}") from None
    if found != sha256:
        raise RepositoryError(
            f"{weights} is not the file model.json describes: its sha256 is {found[:16]}..., "
            f"expected {sha256[:16]}...",
            _COPY,
        )
