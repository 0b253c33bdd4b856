"""Where servers that come and go listen: a folder with a file for each, which clients read."""

from __future__ import annotations

import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from deploy.host.errors import ClientError
from deploy.host.files import write_atomically

_FRESH_S = 180.0
"""What has not said for so long that it is there has died; clocks of hosts may differ by a bit."""


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
        self.folder = folder

    def enter(self, url: str, *, replaces: str = "") -> Entry:
        entry = Entry(secrets.token_hex(4), url, replaces)
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
        """Return the entries of servers that are there; none if there is no such folder."""
        found = []
        for path in sorted(self.folder.glob("*.json")):
            try:
                if time.time() - path.stat().st_mtime > _FRESH_S:
                    continue
                values = json.loads(path.read_bytes())
                found.append(Entry(path.stem, str(values["url"]), str(values["replaces"])))
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it has left meanwhile, or is not ours
        return found

    def urls(self) -> tuple[str, ...]:
        """Return where servers listen.

        Raises:
            ClientError: None does.
        """
        urls = tuple(entry.url for entry in self.entries())
        if not urls:
            raise ClientError(f"{self.folder} names no server", "numlkit status shows why")
        return urls

    def _file(self, entry: Entry) -> Path:
        return self.folder / f"{entry.name}.json"
