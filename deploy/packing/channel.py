"""Conda channels, by py-rattler: an interpreter from one, an installation from several."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import rattler
import rattler.exceptions

from deploy.errors import EnvironmentSetupError
from deploy.packing.conda_package import SUBDIR
from deploy.paths import cache_folder

DEFAULT_CHANNEL = "conda-forge"

_SECONDS = 15.0  # to answer in; a firewall may drop what is sent, without a word

# What an environment may ask of the system it runs on, whichever system makes it.
_SYSTEM = {"__glibc": "2.28", "__linux": "5.0", "__unix": "0", "__archspec": "1"}


class ChannelError(EnvironmentSetupError):
    """A conda channel does not answer, or lacks what is asked for."""


@dataclass(frozen=True)
class ChannelInterpreter:
    """A Python of a conda channel, with all it needs.

    Attributes:
        channel: Name or URL of the channel.
        version: ``X.Y.Z``.
        records: The packages, as the channel describes them.
    """

    channel: str
    version: str
    records: tuple[rattler.RepoDataRecord, ...]

    @property
    def identity(self) -> str:
        """A digest that names these packages."""
        names = sorted(f"{record.file_name} {_hex(record.sha256)}" for record in self.records)
        return hashlib.sha256("\n".join(names).encode()).hexdigest()


def find_in_channel(channel: str, wanted: str) -> ChannelInterpreter:
    """Return a Python ``wanted`` (``X.Y``) of a channel.

    Raises:
        ChannelError: If the channel does not answer or has none.
    """
    try:
        records = asyncio.run(asyncio.wait_for(_solve([channel], [f"python {wanted}.*"]), _SECONDS))
    except TimeoutError:
        raise ChannelError(f"conda channel {channel} does not answer") from None
    except _REFUSALS as error:
        raise ChannelError(f"conda channel {channel}: {_one_line(error)}") from None
    version = next(str(r.version) for r in records if r.name.normalized == "python")
    return ChannelInterpreter(channel, version, tuple(records))


def solve_locally(channel: Path, specs: Sequence[str]) -> list[rattler.RepoDataRecord]:
    """Return the packages of a local channel that ``specs`` name.

    Raises:
        ChannelError: If they do not go together.
    """
    try:
        return asyncio.run(_solve([channel.resolve().as_uri()], specs))
    except _REFUSALS as error:
        raise ChannelError(f"the packages do not go together: {_one_line(error)}") from None


def install(
    records: Iterable[rattler.RepoDataRecord], folder: Path, *, prefix: str, packages: Path
) -> None:
    """Install packages into ``folder``, as for a prefix that will be called ``prefix``.

    Args:
        records: The packages.
        folder: An empty folder.
        prefix: The path that files which name their prefix are given.
        packages: Where unpacked packages are kept; files are hard links to there.

    Raises:
        ChannelError: If a package cannot be had or unpacked.
    """
    try:
        asyncio.run(
            rattler.install(
                list(records),
                target_prefix=folder,
                cache_dir=packages,
                platform=rattler.Subdir(SUBDIR),
                show_progress=False,
                alternative_target_prefix=prefix,
            )
        )
    except _REFUSALS as error:
        raise ChannelError(
            f"py-rattler cannot install: {_one_line(error)}",
            f"rm -r {packages} and repeat the command",
        ) from None


_REFUSALS = (
    rattler.exceptions.GatewayError,
    rattler.exceptions.SolverError,
    rattler.exceptions.FetchRepoDataError,
    rattler.exceptions.InvalidChannelError,
    rattler.exceptions.InstallerError,
    rattler.exceptions.IoError,
    rattler.exceptions.LinkError,
    rattler.exceptions.TransactionError,
)


async def _solve(sources: Sequence[str], specs: Sequence[str]) -> list[rattler.RepoDataRecord]:
    system = [
        rattler.GenericVirtualPackage(
            rattler.PackageName(name), rattler.Version(version), rattler.BuildString("0")
        )
        for name, version in _SYSTEM.items()
    ]
    return await rattler.solve(
        sources=sources,
        specs=specs,
        gateway=rattler.Gateway(cache_dir=cache_folder() / "channels"),
        platforms=[SUBDIR, "noarch"],
        virtual_packages=system,
    )


def _hex(digest: bytes | None) -> str:
    return digest.hex() if digest is not None else ""


def _one_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip() if str(error) else type(error).__name__
