"""What the image says of the models that a release brings weights for: their code and settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from numl_formats.config import render_config, with_digest
from numl_formats.errors import FormatError
from numl_formats.limits import AS_BUILT, Limits
from numl_formats.published import Release
from numl_formats.repository import CARD_FILE, CODE, CONFIG, DATA_FILES
from numl_sync.errors import ReleaseError


@dataclass(frozen=True, slots=True)
class Templates:
    """A folder with a folder for each model, with ``model.py`` and a template of its configuration.

    Nothing of them comes from a bucket.
    """

    folder: Path
    limits: Limits = AS_BUILT

    def check(self, release: Release) -> None:
        """Raise a `ReleaseError` unless the image can serve a release."""
        if not release.models:
            raise ReleaseError("it has an image, not models")
        for name, model in release.models.items():
            if not self.have(name):
                raise ReleaseError(f"this image has no model {name}")
            for file in DATA_FILES:
                if file not in model.files:
                    raise ReleaseError(
                        f"{name} has no {file}: code is taken from the image, not from a bucket"
                    )

    def have(self, name: str) -> bool:
        return (self.folder / name / CONFIG).is_file()

    def code(self, name: str) -> bytes:
        return (self.folder / name / CODE).read_bytes()

    def config(self, name: str, version: int, files: Path) -> str:
        """Return the configuration that serves a version alone, given the folder of its files.

        It carries its own digest: a server shows by it which one it has loaded.

        Raises:
            ReleaseError: Its card is none.
            OSError: It cannot be read.
        """
        template = (self.folder / name / CONFIG).read_text(encoding="utf-8")
        try:
            card = (files / CARD_FILE).read_bytes()
            return with_digest(render_config(name, version, card, self.limits.apply(template)))
        except FormatError as error:
            raise ReleaseError(str(error)) from None
