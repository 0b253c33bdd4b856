"""The environment as a genuine conda prefix, made by py-rattler."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from deploy.console import Say
from deploy.environment.install import MARKER
from deploy.environment.serving import serving_wheel
from deploy.files import built_folder, locked
from deploy.packing.channel import ChannelInterpreter, install, solve_locally
from deploy.packing.conda_package import PLACEHOLDER, PackageName, write_repodata
from deploy.packing.elf import Version, glibc_needed
from deploy.packing.packages import (
    UNPACKED,
    Workshop,
    package_installed,
    package_interpreter,
    package_serving,
    package_wheel,
)
from deploy.packing.plan import EnvironmentBuild
from deploy.packing.wheels import locked_wheels

_CHANNEL = "https://conda.invalid/numlkit"
"""Stands in conda-meta for the local channel, whose place says nothing to others."""


@dataclass(frozen=True)
class Prefix:
    """An environment on this host, as a conda prefix.

    Attributes:
        folder: The prefix.
        digest: Names its contents.
        python_version: ``X.Y.Z`` of its interpreter.
        glibc: The oldest glibc it runs on.
    """

    folder: Path
    digest: str
    python_version: str
    glibc: Version

    @property
    def libpython(self) -> Path:
        """The shared library that the stub loads."""
        short = ".".join(self.python_version.split(".")[:2])
        return self.folder / "lib" / f"libpython{short}.so.1.0"


def make_prefix(build: EnvironmentBuild, say: Say) -> Prefix:
    """Return the environment, made if it is not in the cache.

    Args:
        build: What it is made of.
        say: Is told what happens.

    Raises:
        EnvironmentSetupError: With the reason, if something it needs cannot be had.
    """
    target = build.prefix
    with locked(target.with_suffix(".lock"), waiting=lambda: say("another build makes it")):
        # conda-pack reads the unpacked packages; a cache may have been cleared of them.
        if not ((target / MARKER).exists() and (build.packages / UNPACKED).exists()):
            with built_folder(target) as partial, _workshop(build, say) as shop:
                packages = _make_packages(build, shop, say)
                write_repodata(shop.channel, packages)
                say(f"installing {len(packages)} conda packages")
                records = solve_locally(shop.channel, [package.spec for package in packages])
                install(records, partial, prefix=str(target), packages=shop.unpacked)
                _forget_places(partial / "conda-meta")
                shop.drop_archives()
    return Prefix(
        folder=target,
        digest=build.digest,
        python_version=build.interpreter.version,
        glibc=glibc_needed(target.rglob("*")),
    )


@contextmanager
def _workshop(build: EnvironmentBuild, say: Say) -> Iterator[Workshop]:
    folder = build.packages
    scratch = folder / "scratch"
    with (
        locked(folder.with_suffix(".lock"), waiting=lambda: say("another build makes packages")),
        ThreadPoolExecutor(os.cpu_count()) as compilers,
    ):
        # A build that was killed may have left something there.
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)
        try:
            python = _compiling_python(build, scratch, say)
            yield Workshop(folder, scratch, python, build.interpreter.version, compilers)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _compiling_python(build: EnvironmentBuild, scratch: Path, say: Say) -> Path:
    """Return the interpreter; one from a channel is installed for as long as it is needed."""
    if not isinstance(build.interpreter, ChannelInterpreter):
        return build.interpreter.executable
    say(f"Python {build.interpreter.version} from {build.interpreter.channel}")
    prefix = scratch / "interpreter"
    downloaded = build.cache / "packages" / "downloaded"
    install(build.interpreter.records, prefix, prefix=PLACEHOLDER, packages=downloaded)
    return prefix / "bin" / "python"


def _make_packages(build: EnvironmentBuild, shop: Workshop, say: Say) -> list[PackageName]:
    wheels = locked_wheels(build.lock, build.cache, build.wheels, say)
    say(f"repacking {len(wheels)} wheels")
    # The largest first, so that no core waits for it alone at the end.
    wheels.sort(key=lambda path: -path.stat().st_size)
    with ThreadPoolExecutor(os.cpu_count()) as executor:
        python = executor.submit(_package_python, build, shop)
        waiting = [executor.submit(package_wheel, shop, wheel) for wheel in wheels]
        waiting.append(executor.submit(_package_own, build, shop, say))
        try:
            packages = [*python.result(), *(future.result() for future in waiting)]
            return sorted(packages, key=lambda package: package.name)
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


def _package_python(build: EnvironmentBuild, shop: Workshop) -> Sequence[PackageName]:
    if isinstance(build.interpreter, ChannelInterpreter):
        return package_installed(shop, shop.python.parents[1])
    return [package_interpreter(shop, build.interpreter)]


def _package_own(build: EnvironmentBuild, shop: Workshop, say: Say) -> PackageName:
    wheel = serving_wheel(build.cache, build.source, say)
    return package_serving(shop, wheel, build.digest)


def _forget_places(metadata: Path) -> None:
    """Take out of ``conda-meta`` what holds on this host and for this prefix only."""
    for path in metadata.glob("*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        record["url"] = f"{_CHANNEL}/{record['subdir']}/{record['fn']}"
        record["channel"] = _CHANNEL
        for entry in record["paths_data"]["paths"]:
            if "prefix_placeholder" in entry:
                for key in ("sha256_in_prefix", "size_in_bytes"):
                    entry.pop(key, None)
        path.write_text(json.dumps(record, indent=1, sort_keys=True), encoding="utf-8")
    (metadata / "history").touch()
