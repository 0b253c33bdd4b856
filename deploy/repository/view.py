"""How a server sees files of the host: as they are, or mounted at another place."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from deploy.errors import RepositoryError

# Where a container sees a site's own model repository, and what that refers to outside of it.
SITE = Path("/opt/numl/site")
_NOT_PLAIN = re.compile(r"[^\w.+-]", re.ASCII)


@dataclass(frozen=True)
class View:
    """How a server sees files of the host.

    Attributes:
        places: Files and folders of the host, and where the server sees each; None: it sees
            the host itself.
    """

    places: tuple[tuple[Path, Path], ...] | None = None

    def of(self, path: Path) -> Path:
        """Return where the server sees ``path``, which is free of links.

        Raises:
            KeyError: If it does not see it.
        """
        if self.places is None:
            return path
        around = [(host, place) for host, place in self.places if path.is_relative_to(host)]
        if not around:
            raise KeyError(str(path))
        host, place = max(around, key=lambda pair: len(pair[0].parts))
        return place / path.relative_to(host)


THE_HOST = View()


def mounted(repository: Path, linked: Iterable[Path], environments: Iterable[Path]) -> View:
    """Return what a container sees of a site's repository.

    Args:
        repository: The repository.
        linked: What links in it lead to.
        environments: Execution environments: packed or folders. Triton's Python backend puts
            their paths into a shell command, so each gets a place with a plain name.

    Raises:
        RepositoryError: If a path cannot be told to a container engine.
    """
    places = {repository.resolve(): SITE / "models"}
    for path in sorted(set(linked)):
        if not any(path.is_relative_to(host) for host in places):
            places[path] = SITE / "linked" / str(len(places)) / _NOT_PLAIN.sub("_", path.name)
    for number, path in enumerate(dict.fromkeys(environments), start=1):
        places[path] = SITE / "environments" / f"{number}-{_NOT_PLAIN.sub('_', path.name)}"
    for path in places:
        if not str(path).isprintable():
            raise RepositoryError(f"{str(path)!r}: a path with a line break cannot be mounted")
    return View(tuple(places.items()))
