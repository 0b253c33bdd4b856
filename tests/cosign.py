"""Stands for cosign, for tests of what it is asked: writes that down, and says what a test wants.

What cosign itself makes of it is tested in tests/containers/supply.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.keys import new_key, write_key
from tests.programs import write_program

_PROGRAM = """#!{python} -IS
import json, pathlib, sys
here = pathlib.Path({folder!r})
with (here / "asked").open("a") as file:
    file.write(json.dumps(sys.argv[1:]) + "\\n")
for word, text in json.loads((here / "refusals").read_text()).items():
    if word in sys.argv:
        sys.exit(text)
for flag, path in zip(sys.argv, sys.argv[1:]):
    if flag == "--output-signature" and sys.argv[1] == "sign-blob":
        pathlib.Path(path).write_text("a signature")
if sys.argv[1] == "verify" and (here / "payloads").exists():
    print((here / "payloads").read_text())
if sys.argv[1] == "public-key":
    print(pathlib.Path({folder!r}, "cosign.pub").read_text(), end="")
"""


@dataclass(frozen=True)
class Cosign:
    """The stand-in, first on PATH, and a public key."""

    folder: Path

    @classmethod
    def install(cls, folder: Path, patch: pytest.MonkeyPatch) -> Cosign:
        program = _PROGRAM.format(python=sys.executable, folder=str(folder))
        write_program(folder / "cosign", program)
        patch.setenv("PATH", str(folder), prepend=":")
        found = cls(folder)
        write_key(new_key(), found.key)
        found.refuse({})
        return found

    @property
    def key(self) -> Path:
        """A public key as cosign writes it."""
        return self.folder / "cosign.pub"

    @property
    def asked(self) -> list[list[str]]:
        """The words of each call."""
        file = self.folder / "asked"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def answer(self, payloads: str) -> None:
        """Have verifications of an image print what was signed."""
        (self.folder / "payloads").write_text(payloads)

    def refuse(self, refusals: dict[str, str]) -> None:
        """Have calls with a word in them fail with a text."""
        (self.folder / "refusals").write_text(json.dumps(refusals))
