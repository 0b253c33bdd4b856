"""The sync agent as a folder of the image: ``numl_sync`` and what it imports.

Apart from the models' packages, and run by their interpreter: ``python -IB FOLDER``.
"""

import hashlib
import shutil
from fnmatch import fnmatch
from pathlib import Path

from deploy.environment.environment import Environment
from deploy.environment.lock import file_of, install_beside
from deploy.environment.slimming import compile_modules
from deploy.host.console import Say
from deploy.host.files import built_folder, digest_of, locked
from deploy.host.paths import ENVIRONMENT_SOURCE, cache_folder

_SOURCES = (ENVIRONMENT_SOURCE / "numl_sync", ENVIRONMENT_SOURCE / "numl_formats")

_MAIN = """\
from numl_sync.command import main

raise SystemExit(main())
"""
# botocore describes 400 services. The agent reads S3; STS gives a cluster's pods their keys.
_SERVICES = ("s3", "sts")
_LEFT_OUT = ("*.dist-info/RECORD", "bin/*", "botocore/data/*/examples-1.json")


def sync_lock(python: str) -> Path:
    """Return the agent's lock for a Python (``X.Y``)."""
    return file_of(ENVIRONMENT_SOURCE / "locks", "sync", python)


def agent_digest(python: str) -> str:
    sources = [path for folder in _SOURCES for path in folder.glob("*.py")]
    return digest_of([sync_lock(python), *sources], base=ENVIRONMENT_SOURCE)


def agent_folder(environment: Environment, say: Say) -> Path:
    """Return the folder, made if necessary, for the interpreter of an existing environment."""
    python = environment.interpreter
    recipe = digest_of([Path(__file__)], base=Path(__file__).parent)
    whole = f"{recipe}{agent_digest(python.short_version)}{python.identity}"
    folder = cache_folder() / "sync" / hashlib.sha256(whole.encode()).hexdigest()[:16]
    with locked(folder.with_suffix(".lock")):
        if not folder.exists():
            say("the sync agent")
            with built_folder(folder) as partial:
                install_beside(
                    partial,
                    sync_lock(python.short_version),
                    python=python.short_version,
                    say=say,
                    wheels=environment.wheels,
                )
                _slim(partial)
                for source in _SOURCES:
                    ignored = shutil.ignore_patterns("__pycache__")
                    shutil.copytree(source, partial / source.name, ignore=ignored)
                (partial / "__main__.py").write_text(_MAIN, encoding="utf-8")
                compile_modules(partial, sorted(partial.rglob("*.py")), python.executable)
    return folder


def _slim(folder: Path) -> None:
    for service in (folder / "botocore" / "data").iterdir():
        if service.is_dir() and service.name not in _SERVICES:
            shutil.rmtree(service)
    for path in sorted(folder.rglob("*"), reverse=True):  # a folder comes after its contents
        name = path.relative_to(folder).as_posix()
        if path.is_file() and any(fnmatch(name, pattern) for pattern in _LEFT_OUT):
            path.unlink()
        elif path.is_dir() and not any(path.iterdir()):
            path.rmdir()
