"""Where servers that come and go listen: a folder with a file for each, which clients follow.

``docs/client.md`` has the format and its rules; the C++ client reads it too.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.host.errors import ClientError
from deploy.host.files import read_most, write_atomically

_FRESH_S = 180.0
"""What has not said for so long that it is there has died; clocks of hosts may differ by a bit."""
_MOST_BYTES = 1024
_NO_ENTRY = (OSError, LookupError, RecursionError, TypeError, ValueError)
"""What reading a file raises whose server has left meanwhile or died, or that is not ours."""
_ADDRESS = re.compile(r"grpcs?://([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]):([1-9][0-9]{0,4})")


@dataclass(frozen=True, slots=True)
class Entry:
    """A server that listens.

    Attributes:
        name: Of its file, without the ending.
        replaces: The entry in whose place it is; empty: none.
    """

    name: str
    url: str
    replaces: str = ""


class Registry:
    """A folder of entries; it may be on a file system that hosts share."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()  # a notebook may change to another

    def enter(self, url: str, *, name: str = "", replaces: str = "") -> Entry:
        """Enter a server, under a random name if it has none of its own."""
        entry = Entry(name or secrets.token_hex(4), url, replaces)
        self.folder.mkdir(parents=True, exist_ok=True)
        text = json.dumps({"url": entry.url, "replaces": entry.replaces})
        write_atomically(self._file(entry), text + "\n")
        return entry

    def stay(self, entry: Entry) -> None:
        """Say that a server is still there: at least once a minute."""
        with suppress(FileNotFoundError):
            os.utime(self._file(entry))

    def leave(self, entry: Entry) -> None:
        self._file(entry).unlink(missing_ok=True)

    def entries(self) -> list[Entry]:
        """Return the entries of servers that are there; none if the folder cannot be read."""
        paths, found = [], []
        with suppress(OSError):
            paths = sorted(self.folder.glob("*.json"))
        for path in paths:
            with suppress(*_NO_ENTRY):
                found.append(_read(path))
        return found

    def urls(self) -> tuple[str, ...]:
        """Return where servers listen, each address once.

        Raises:
            ClientError: None does.
        """
        urls = tuple(dict.fromkeys(entry.url for entry in self.entries()))
        if not urls:
            why, shows = "", "why"
            if not self.folder.is_dir():
                why, shows = ": no such folder", "its folder"
            remedy = f"numlkit status with the --name of their numlkit up shows {shows}"
            raise ClientError(f"{self.folder} names no server{why}", remedy)
        return urls

    def _file(self, entry: Entry) -> Path:
        return self.folder / f"{entry.name}.json"


def _read(path: Path) -> Entry:
    """Return the entry in a file; one of `_NO_ENTRY` if there is none, or its server has died."""
    content = read_most(path, _MOST_BYTES + 1)
    if len(content) > _MOST_BYTES or time.time() - path.stat().st_mtime > _FRESH_S:
        raise ValueError(path)
    values = json.loads(content)
    address = _ADDRESS.fullmatch(values["url"])
    if address is None or int(address[2]) > 65535:
        raise ValueError(values["url"])
    return Entry(path.stem, values["url"], str(values.get("replaces", "")))
