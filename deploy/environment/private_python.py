"""The kit's own Python, for hosts without a suitable one: conda-forge's, by py-rattler.

Its packages are pinned by digest, so its content is known before it is fetched.
"""

import hashlib
import re
import shutil
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

from deploy.environment.interpreter import Interpreter, no_interpreter
from deploy.host.command_line import quote
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError
from deploy.host.files import built_folder, locked, sha256_of
from deploy.host.paths import ENVIRONMENT_SOURCE, cache_folder

PINS = ENVIRONMENT_SOURCE / "locks" / "python.txt"
CHANNEL = "conda-forge"

_PIN = re.compile(
    r"(?P<sha256>[0-9a-f]{64})  (?P<subdir>[\w-]+)/"
    r"(?P<file>(?P<name>\S+)-(?P<version>[^-\s]+)-(?P<build>[^-\s]+)\.(?:conda|tar\.bz2))"
)
_TIMEOUT = 10.0  # seconds without an answer; a firewall may drop packets silently


class Pin(NamedTuple):
    """A package of conda-forge, pinned by its sha256."""

    sha256: str
    subdir: str
    file: str
    name: str
    version: str
    build: str


def private_python(pythons: tuple[str, ...]) -> Interpreter | None:
    """Return the kit's own Python, fetched or not; None if it is not one of these (``X.Y``)."""
    version = next(package.version for package in pins() if package.name == "python")
    short = version.rpartition(".")[0]
    if short not in pythons:
        return None
    identity = hashlib.sha256(PINS.read_bytes()).hexdigest()
    folder = cache_folder() / "python" / f"{version}-{identity[:12]}"
    return Interpreter(
        executable=folder / "bin" / f"python{short}",
        version=version,
        libpython=folder / "lib" / f"libpython{short}.so.1.0",
        stands_for=pythons,
    )


def ensure_private_python(interpreter: Interpreter, say: Say, instead: str | None = None) -> None:
    """Fetch it if it is the kit's own; if it cannot be had, say what to install, or do, instead."""
    if interpreter.private:
        try:
            _fetch(interpreter, say)
        except _UnavailableError as error:
            raise no_interpreter(interpreter.stands_for, str(error), instead) from None


def fetch_if_reachable(say: Say) -> None:
    """Fetch the kit's own Python if possible: it runs on older systems than most hosts' do."""
    interpreter = private_python(("3.11",))
    if interpreter is not None:
        try:
            _fetch(interpreter, say)
        except _UnavailableError as error:
            say(f"{error}: using this host's Python")


def pins() -> list[Pin]:
    try:
        lines = PINS.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise EnvironmentSetupError(f"{PINS}: {error.strerror}", "git checkout the file") from None
    matches = [_PIN.fullmatch(line) for line in lines if line and not line.startswith("#")]
    return [Pin(**match.groupdict()) for match in matches if match is not None]


class _UnavailableError(Exception):
    """Why there is no Python to be had from the channel."""


def _fetch(interpreter: Interpreter, say: Say) -> None:
    folder = interpreter.executable.parents[1]
    if folder.exists():
        return
    with locked(folder.with_name(f"{folder.name}.lock")):
        if not folder.exists():
            say(f"fetching Python {interpreter.version} from {CHANNEL}")
            with built_folder(folder) as partial:
                _install(partial, folder)


def _install(partial: Path, folder: Path) -> None:
    import asyncio  # most hosts never need these

    import rattler
    from rattler.exceptions import InstallerError, IoError, LinkError, TransactionError

    packages = cache_folder() / "conda"
    packages.mkdir(parents=True, exist_ok=True)
    channel = rattler.Channel(CHANNEL).base_url
    for package in pins():
        _download(f"{channel}{package.subdir}/{package.file}", packages / package.file, package)
    records = [
        rattler.RepoDataRecord(
            rattler.PackageRecord(
                package.name,
                package.version,
                rattler.BuildString(package.build),
                0,
                package.subdir,
                sha256=bytes.fromhex(package.sha256),
            ),
            package.file,
            (packages / package.file).as_uri(),
            channel,
        )
        for package in pins()
    ]
    installed = rattler.install(
        records,
        target_prefix=partial,
        cache_dir=packages / "unpacked",
        platform=rattler.Subdir("linux-64"),
        show_progress=False,
        alternative_target_prefix=folder,
    )
    try:
        asyncio.run(installed)
    except (InstallerError, IoError, LinkError, TransactionError) as error:
        cause = f"py-rattler cannot install Python: {_first_line(error)}"
        remedy = f"rm -r {quote(str(packages))} and run the command again"
        raise EnvironmentSetupError(cause, remedy) from None
    shutil.rmtree(packages)


def _download(url: str, target: Path, package: Pin) -> None:
    """Download a package and check it against its pin: py-rattler does not check local files."""
    import requests  # takes long, and few hosts need it
    from urllib3.exceptions import HTTPError, ReadTimeoutError

    if target.exists() and sha256_of(target) == package.sha256:
        return
    partial = target.with_name(f"{target.name}.partial")
    try:
        if url.startswith("file:"):
            shutil.copyfile(url2pathname(urlsplit(url).path), partial)
        else:
            with requests.get(url, timeout=_TIMEOUT, stream=True) as answer:
                answer.raise_for_status()
                with partial.open("wb") as file:
                    shutil.copyfileobj(answer.raw, file)
    except (requests.Timeout, ReadTimeoutError):
        raise _UnavailableError(f"{CHANNEL} does not answer") from None
    except HTTPError:  # of urllib3: the file is read as it is, past requests
        raise _UnavailableError(f"{CHANNEL} breaks off") from None
    except requests.ConnectionError:
        raise _UnavailableError(f"{CHANNEL} cannot be reached") from None
    except OSError as error:
        raise _UnavailableError(f"{CHANNEL}: {_first_line(error)}") from None
    if sha256_of(partial) != package.sha256:
        partial.unlink()
        raise _UnavailableError(
            f"{CHANNEL}'s {package.file} is not the pinned one: its sha256 differs"
        )
    partial.rename(target)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].strip() if str(error) else type(error).__name__
