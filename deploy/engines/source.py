"""The .sif that ``--image`` names: a file, or the release that serves from a published folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from deploy.artefacts.keys import Signer
from deploy.artefacts.trust import is_published, stated_in, trusted_in
from deploy.host.errors import LaunchError, SignatureError
from numl_formats.published import Published, Release

_MOST_LINKS = 40  # as Linux follows; they may be changed while they are


@dataclass(frozen=True)
class Source:
    """A .sif, found once: links on the way to it may be switched later.

    Attributes:
        release: The release that it should be, where a statement lies beside it.
        trusted: Whether that statement is verified.
    """

    path: Path
    release: Release | None = None
    trusted: bool = False

    def differs_in_length(self) -> bool:
        """Return whether the statement gives the .sif another length than it has."""
        image = self.release.image if self.release is not None else None
        return image is not None and self.path.stat().st_size != image.bytes


def find_source(named: Path, signer: Signer | None, remedy: str) -> Source:
    """Return the .sif at a path, or in a folder that ``numlkit publish`` wrote.

    Args:
        signer: Who must have signed the folder's statement; None: it is believed.
        remedy: What to do if there is no such file.

    Raises:
        SignatureError: The statement is refused.
        LaunchError: There is no such .sif.
    """
    try:
        path = named.resolve()
    except (OSError, RuntimeError):  # links that lead to each other
        raise LaunchError(f"{named}: no such file", remedy) from None
    found = Source(path)
    # Where a link in a folder leads is only believed where everything else is, too.
    for hop in (path,) if signer is None else _hops(named.absolute()):
        at = next((each for each in _places(hop) if is_published(each[0], signer)), None)
        if at is not None:
            place, number = at
            published = trusted_in(place, signer) if signer is not None else stated_in(place)
            if published is not None:
                found = _published(place.resolve(), published, number, signer) or found
            break
    if found.path.is_dir():
        cause = f"{found.path} is a folder, not a .sif"
        raise LaunchError(cause, "--image with a .sif, or with a folder of numlkit publish")
    if not found.path.is_file():
        raise LaunchError(f"{found.path}: no such file", remedy)
    return found


def _hops(path: Path) -> Iterator[Path]:
    """Yield a path as it is named, then with one after another of its links followed."""
    for _ in range(_MOST_LINKS):
        yield path
        link = next((each for each in (*reversed(path.parents), path) if each.is_symlink()), None)
        if link is None:
            return
        path = link.parent / link.readlink() / path.relative_to(link)
    raise LaunchError(f"{path}: more than {_MOST_LINKS} links", "name the file itself")


def _places(path: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield where a path may be a place, or in one; then with what it names there."""
    if path.is_dir() and not path.is_symlink():
        yield path, None
    else:
        yield path.parent.parent, path.parent.name
        yield path.parent, path.name


def _published(
    place: Path, published: Published, number: str | None, signer: Signer | None
) -> Source | None:
    """Return the release that serves, or one by its number, as in DEST/3/numl.sif."""
    releases, trusted = {str(each.number): each for each in published.releases}, signer is not None
    release = published.current
    if number is not None and (number.isdecimal() or not trusted):
        if number not in releases:
            if trusted:
                remedy = f"--image {place}, for the release that serves"
                raise SignatureError(f"{place} has no release {number} any more", remedy)
            return None
        release = releases[number]
    if release.image is None or release.image.form != "sif":
        why = ": its files cannot be verified" if trusted else ", which is not started from a .sif"
        cause = f"release {release.number} in {place} is a sandbox{why}"
        raise LaunchError(cause, "have it published without --sandbox")
    return Source(place / str(release.number) / release.image.name, release, trusted)
