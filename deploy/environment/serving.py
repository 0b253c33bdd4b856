"""``numl_serving`` as a wheel: built once, by the kit's own Python, for all environments.

Its native library is a shared object that any Python loads, so no environment needs a compiler or
build tools. The compiler is the host's, else the one that ``scripts/kit-environment`` installs. An
installed kit has it built already.
"""

import hashlib
import shutil
import sys
from contextlib import suppress
from pathlib import Path

from deploy.environment.tars import CONTENT_EPOCH
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.files import built_folder, digest_of, locked
from deploy.host.paths import CHECKOUT, IS_INSTALLED
from deploy.host.programs import run, run_pip, without_python_variables

PREBUILT = CHECKOUT / "prebuilt"
COMPILER = "compiler.txt"
"""Beside the native library: what compiled it."""
_SOURCES = {".py", ".typed", ".cpp", ".h", ".map"}


def serving_digest(source: Path) -> str:
    """Return the digest of the wheel's sources, given their folder (``envs/numl``)."""
    files = [source / "pyproject.toml", source / "setup.py"]
    for folder in ("numl_serving", "numl_formats", "native"):
        files += [path for path in (source / folder).rglob("*") if path.suffix in _SOURCES]
    return digest_of((path for path in files if path.is_file()), base=source)


def serving_wheel(cache: Path, source: Path, say: Say) -> Path:
    for wheel in PREBUILT.glob("numl_serving-*.whl") if IS_INSTALLED else ():
        return wheel
    made, digest = cache / "serving", serving_digest(source)[:16]
    compiler = compiler_of(source)
    if compiler is None:
        # A cache shared by several hosts may have it, even if this host could not build it.
        for wheel in made.glob(f"{digest}-*/*.whl"):
            return wheel
    folder = made / f"{digest}-{hashlib.sha256((compiler or '').encode()).hexdigest()[:8]}"
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            say("building numl_serving")
            with built_folder(folder) as partial:
                _build(source, partial)
    return next(folder.glob("*.whl"))


def compiler_of(source: Path) -> str | None:
    """Return the compiler of the native library, with its version; None if this host has none."""
    command = [sys.executable, str(source / "native" / "compiler.py")]
    with suppress(BuildError):
        return run(command, failed="no compiler", environment=without_python_variables())
    return None


def compiler_in(site_packages: Path) -> str:
    """Return the compiler, with its version, of the native library that is installed there."""
    return (site_packages / "numl_serving" / COMPILER).read_text(encoding="utf-8").strip()


def _build(source: Path, folder: Path) -> None:
    # From a copy: setuptools leaves build folders beside what it builds.
    copy = folder / "source"
    ignored = shutil.ignore_patterns("build", "locks", "*.egg-info", "__pycache__")
    shutil.copytree(source, copy, ignore=ignored)
    command = ["wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    command += ["--wheel-dir", str(folder), str(copy)]
    variables = {"SOURCE_DATE_EPOCH": str(CONTENT_EPOCH)}
    run_pip(command, "pip cannot build numl_serving", scratch=folder, variables=variables)
    shutil.rmtree(copy)
