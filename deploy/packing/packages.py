"""Everything an environment holds, as conda packages in a local channel."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from deploy.environment.install import MARKER
from deploy.environment.interpreter import Interpreter
from deploy.files import sha256_of
from deploy.packing.bytecode import compile_modules
from deploy.packing.conda_package import SUBDIR, PackageName, write_package
from deploy.packing.cpython import identity_of, lay_out
from deploy.packing.elf import drop_symbols, is_elf
from deploy.packing.slimming import is_needed
from deploy.packing.wheel_tree import WheelName, unpack_wheel

SERVING = "numl-serving"
UNPACKED = "unpacked"

_SITECUSTOMIZE = '''\
"""Python finds the packages of this environment, and no others."""

import os
import site
import sys

# A container sees the user's home folder, where other versions of the packages may lie.
if site.ENABLE_USER_SITE and site.getusersitepackages() in sys.path:
    sys.path.remove(site.getusersitepackages())
# Debian's Python looks elsewhere.
_folder = os.path.join(os.path.dirname(__file__), "site-packages")
if _folder not in sys.path:
    site.addsitedir(_folder)
'''


@dataclass(frozen=True)
class Workshop:
    """Where packages are made.

    Attributes:
        folder: Holds the channel and what is unpacked of it.
        scratch: Emptied when the work is done.
        python: An interpreter that compiles modules for the environment.
        version: ``X.Y.Z`` of the environment's interpreter.
        compilers: Runs its processes.
    """

    folder: Path
    scratch: Path
    python: Path
    version: str
    compilers: Executor

    @property
    def channel(self) -> Path:
        """The local channel."""
        return self.folder / "channel"

    @property
    def unpacked(self) -> Path:
        """What py-rattler has unpacked; while it is there, archives are not needed."""
        return self.folder / UNPACKED

    @property
    def short_version(self) -> str:
        """``X.Y`` of the environment's interpreter."""
        return ".".join(self.version.split(".")[:2])

    def make(
        self, package: PackageName, depends: Iterable[str], fill: Callable[[Path], None]
    ) -> PackageName:
        """Make a package, unless it is there.

        Args:
            package: Its name.
            depends: What it needs, in conda's words.
            fill: Writes its files into a folder.
        """
        if not self.has(package):
            with tempfile.TemporaryDirectory(dir=self.scratch) as scratch:
                tree = Path(scratch)
                fill(tree)
                for job in compile_modules(tree, self.python, self.compilers):
                    job.result()
                write_package(package, depends, tree, self.channel)
        return package

    def has(self, package: PackageName) -> bool:
        """Tell whether a package can be installed."""
        archive = self.channel / SUBDIR / package.file_name
        unpacked = self.unpacked / package.stem / "info" / "index.json"
        return archive.with_suffix(".json").exists() and (archive.exists() or unpacked.exists())

    def drop_archives(self) -> None:
        """Remove the packages' archives, which have been unpacked."""
        for path in (self.channel / SUBDIR).iterdir():
            if path.suffix != ".json":
                path.unlink()


def package_interpreter(shop: Workshop, interpreter: Interpreter) -> PackageName:
    """Package an interpreter of this host."""
    name = PackageName("python", interpreter.version, f"{identity_of(interpreter)[:8]}_cpython")
    return shop.make(name, (), lambda tree: lay_out(interpreter, tree))


def package_wheel(shop: Workshop, wheel: Path) -> PackageName:
    """Package a locked wheel, without what inference never loads."""
    name = WheelName.of(wheel)

    def fill(tree: Path) -> None:
        unpack_wheel(wheel, tree, shop.short_version)
        for path in tree.rglob("*.so*"):
            if is_elf(path):
                drop_symbols(path)

    # A prefix of its own: what the lock decides must not be mixed up with packages of
    # the same name in the interpreter's channel, which are built differently.
    package = PackageName(f"pypi-{name.distribution}", name.version, _build(shop, wheel))
    return shop.make(package, [f"python {shop.short_version}.*"], fill)


def package_serving(shop: Workshop, wheel: Path, digest: str) -> PackageName:
    """Package ``numl_serving`` with what identifies the environment.

    Args:
        shop: Where packages are made.
        wheel: ``numl_serving``.
        digest: Names the environment.
    """
    name = WheelName.of(wheel)

    def fill(tree: Path) -> None:
        unpack_wheel(wheel, tree, shop.short_version)
        facts = {"digest": digest, "python": shop.version}
        (tree / MARKER).write_text(json.dumps(facts) + "\n", encoding="utf-8")
        customisation = tree / "lib" / f"python{shop.short_version}" / "sitecustomize.py"
        customisation.write_text(_SITECUSTOMIZE, encoding="utf-8")

    package = PackageName(SERVING, name.version, f"{_py(shop)}_{digest[:8]}")
    return shop.make(package, [f"python {shop.short_version}.*"], fill)


def package_installed(shop: Workshop, prefix: Path) -> list[PackageName]:
    """Package again what a channel's interpreter consists of, by the same rules as a wheel.

    Args:
        shop: Where packages are made.
        prefix: It is installed there, with our placeholder for its prefix.
    """
    made = []
    for path in sorted((prefix / "conda-meta").glob("*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        files = [f for f in record["files"] if is_needed(f) and not f.endswith(".pyc")]

        def fill(tree: Path, files: Iterable[str] = files) -> None:
            for name in files:
                (tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(prefix / name, tree / name, follow_symlinks=False)

        package = PackageName(record["name"], record["version"], record["build"])
        made.append(shop.make(package, record["depends"], fill))
    return made


def _build(shop: Workshop, wheel: Path) -> str:
    content = f"{sha256_of(wheel)}{shop.version}"
    return f"{_py(shop)}_{hashlib.sha256(content.encode()).hexdigest()[:8]}"


def _py(shop: Workshop) -> str:
    return f"py{shop.short_version.replace('.', '')}"
