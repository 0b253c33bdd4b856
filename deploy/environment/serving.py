"""``numl_serving`` as a wheel: built once, by the kit's own Python, for all environments.

Its native library is a plain shared object that any Python loads, so the environments need neither
a compiler nor the tools that build a wheel. The compiler is the host's, or the one that
``scripts/kit-environment`` installs where there is none.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.console import Say
from deploy.environment.pip import PIP, run_pip
from deploy.files import built_folder, digest_of, locked

# Every file in the wheel has this time, 1980-01-01: the first that a zip archive knows.
_EPOCH = "315532800"
_SOURCES = {".py", ".typed", ".cpp", ".h", ".map"}


def serving_digest(source: Path) -> str:
    """Return the digest of what the wheel is made from.

    Args:
        source: Folder of the ``numl_serving`` distribution (``envs/numl``).
    """
    files = [source / "pyproject.toml", source / "setup.py"]
    for folder in ("numl_serving", "native"):
        files += [path for path in (source / folder).rglob("*") if path.suffix in _SOURCES]
    return digest_of((path for path in files if path.is_file()), base=source)


def serving_wheel(cache: Path, source: Path, say: Say) -> Path:
    """Return the wheel, built if it is not in the cache.

    Args:
        cache: The kit's cache folder.
        source: Folder of the ``numl_serving`` distribution (``envs/numl``).
        say: Is told what happens.

    Raises:
        EnvironmentSetupError: With the reason if it cannot be built.
    """
    folder = cache / "serving" / serving_digest(source)[:16]
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            say("building numl_serving")
            with built_folder(folder) as partial:
                _build(source, partial)
    return next(folder.glob("*.whl"))


def _build(source: Path, folder: Path) -> None:
    # From a copy: setuptools leaves build folders beside what it builds.
    copy = folder / "source"
    ignored = shutil.ignore_patterns("build", "locks", "*.egg-info", "__pycache__")
    shutil.copytree(source, copy, ignore=ignored)
    command = [*PIP, "wheel", "--no-deps", "--no-build-isolation", "--quiet"]
    command += ["--wheel-dir", str(folder), str(copy)]
    variables = {"SOURCE_DATE_EPOCH": _EPOCH}
    run_pip(command, "pip cannot build numl_serving", scratch=folder, variables=variables)
    shutil.rmtree(copy)
