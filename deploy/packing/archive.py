"""The environment as a tar.gz for a stock Triton: packed, tried, then given its name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tarfile
import zlib
from collections.abc import Sequence
from pathlib import Path

from deploy.console import Say
from deploy.errors import BuildError
from deploy.files import locked, sha256_of, work_folder, write_atomically
from deploy.packing.gzip_writer import GzipWriter
from deploy.packing.plan import EnvironmentBuild
from deploy.packing.prefix import Prefix
from deploy.packing.tar_writer import write_tar
from deploy.paths import MODEL_REPOSITORY
from deploy.repository.stage import VERSION

_LEVEL = 4
_EXCEPTION = re.compile(r"[\w.]+(Error|Exception)\b")


def archive_name(build: EnvironmentBuild) -> str:
    """Return the file name of an environment's archive."""
    return f"numl-{build.flavour}-py{build.lock.python}-{build.digest[:12]}.tar.gz"


def pack_archive(prefix: Prefix, build: EnvironmentBuild, out: Path, say: Say, epoch: int) -> Path:
    """Pack an environment for Triton's ``EXECUTION_ENV_PATH``.

    The archive gets its name when it has answered the models' golden events, unpacked at
    another place. Beside it goes a file with its sha256, as ``sha256sum -c`` reads it.

    Args:
        prefix: The environment.
        build: What it is made of.
        out: The folder for the archive.
        say: Is told what happens.
        epoch: Time of all files in it, in seconds since 1970.

    Raises:
        BuildError: If it cannot be packed, or does not work when unpacked.
    """
    target = out / archive_name(build)
    with locked(build.prefix.with_suffix(".packing.lock")), work_folder(target) as scratch:
        partial = scratch / target.name
        say("packing")
        with partial.open("wb") as file, GzipWriter(file, _LEVEL) as compressed:
            write_tar(
                compressed, prefix.folder, root="", destination=None, epoch=epoch,
                wanted=lambda _path: True, scripts=True,
            )  # fmt: skip
        say("checking the packed environment")
        try_out(partial, scratch / "unpacked")
        digest = sha256_of(partial)
        partial.chmod(0o644)
        # The digest first: an archive that has its name has its digest too.
        write_atomically(target.with_name(f"{target.name}.sha256"), f"{digest}  {target.name}\n")
        partial.replace(target)
    return target


def try_out(archive: Path, folder: Path) -> None:
    """Unpack an archive into ``folder`` and let every tracked model answer its golden event.

    Raises:
        BuildError: If it cannot be unpacked or activated, or a model gives another answer.
    """
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="tar")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BuildError(f"{archive.name} cannot be unpacked: {error}") from None
    models = MODEL_REPOSITORY.glob(f"*/{VERSION}/golden.npz")
    check_unpacked(folder, sorted(path.parent for path in models))


def check_unpacked(folder: Path, models: Sequence[Path]) -> None:
    """Check an unpacked environment as Triton starts it: activated, from where it lies.

    Args:
        folder: Its prefix.
        models: Folders with ``model.json``, weights and ``golden.npz``.

    Raises:
        BuildError: If it cannot be activated, or a model gives another answer.
    """
    script = 'source "$0/bin/activate" && exec python -P -m numl_serving.check "$@"'
    kept = ("PATH", "HOME", "TMPDIR", "LANG")
    variables = {name: os.environ[name] for name in kept if name in os.environ}
    # An environment is read-only where it is used; so is this one.
    variables |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        ["bash", "-c", script, str(folder), *map(str, models)],
        capture_output=True, text=True, env=variables, check=False,
    )  # fmt: skip
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for report in reports:
        if report.get("ok") is False:
            raise BuildError(f"packed environment: model {report['model']}: {report['error']}")
    started = any(Path(r["prefix"]).resolve() == folder.resolve() for r in reports if "prefix" in r)
    if done.returncode != 0 or not started:
        # Of exceptions that follow from each other, the first says why.
        said = [line for line in done.stderr.splitlines() if _EXCEPTION.match(line)]
        said = said or done.stderr.split("\n")[-2:]
        reason = said[0].strip() if said and said[0].strip() else f"exit status {done.returncode}"
        raise BuildError(f"the packed environment does not work: {reason}")
