"""The environment in tar archives: one, tested, for a stock Triton; two as layers of an image."""

import tarfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from zlib_ng import gzip_ng_threaded

from deploy.environment.check import check_answers
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.environment import Environment, is_of_serving
from deploy.environment.tars import write_prefix
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.files import locked, sha256_of, work_folder, write_atomically
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY

_LEVEL = 4


def archive_name(environment: Environment) -> str:
    python = environment.interpreter.short_version
    return f"{environment.name}-{environment.flavour}-py{python}-{environment.digest[:12]}.tar.gz"


def pack_archive(environment: Environment, out: Path, say: Say, epoch: int) -> Path:
    """Pack an environment for Triton's ``EXECUTION_ENV_PATH``.

    The archive gets its name once the models have given their reference outputs in it, unpacked
    elsewhere. A file for ``sha256sum -c`` goes beside it. Its files' time is ``epoch`` (Unix, s).
    """
    target = out / archive_name(environment)
    lock = environment.folder.with_name(f"{environment.folder.name}.packing.lock")
    with locked(lock), work_folder(target) as scratch:
        partial = scratch / target.name
        say("packing")
        with gzip_ng_threaded.open(  # type: ignore[no-untyped-call]
            partial, "wb", compresslevel=_LEVEL, threads=-1
        ) as stream:
            write_prefix(stream, environment.folder, epoch=epoch)
        say("checking the packed environment")
        # Other environments need not have what NuGraph's models import.
        ours = environment.name == ENVIRONMENT_SOURCE.name
        models = sorted(path.parent for path in MODEL_REPOSITORY.glob("*/1/golden.npz"))
        try_out(partial, scratch / "unpacked", models if ours else ())
        digest = sha256_of(partial)
        partial.chmod(0o644)
        # The digest first: an archive under its final name always has its digest.
        write_atomically(target.with_name(f"{target.name}.sha256"), f"{digest}  {target.name}\n")
        partial.replace(target)
    return target


def pack_layers(environment: Environment, folder: Path, say: Say) -> None:
    """Write an environment as two layers of an image, at its path in the image.

    ``packages.tar`` holds the interpreter and the locked packages. ``serving.tar`` holds
    ``numl_serving`` and what names the environment: all that a change in our Python changes.
    """
    parts: dict[str, Callable[[str], bool]] = {
        "packages": lambda path: not is_of_serving(path),
        "serving": is_of_serving,
    }
    for name, wanted in parts.items():
        say(f"writing the layer {name}.tar")
        with (folder / f"{name}.tar").open("wb") as stream:
            root = IMAGE_PREFIX.lstrip("/")
            write_prefix(stream, environment.folder, root=root, wanted=wanted)


def try_out(archive: Path, folder: Path, models: Sequence[Path]) -> None:
    """Unpack an archive into ``folder`` and have ``models`` answer their reference events there."""
    try:
        with tarfile.open(archive) as tar:
            # Python 3.11.2, Debian 12's own, has no argument for it.
            tar.extraction_filter = getattr(tarfile, "tar_filter", None)
            tar.extractall(folder)
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise BuildError(f"{archive.name} cannot be unpacked: {error}") from None
    check_answers(folder, models, threads=1, failed="the packed environment does not work")
