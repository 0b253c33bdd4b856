"""The container-free engine's own things: Triton from its wheel, the execution environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from deploy.checks.finding import Finding, Level, ok, wrong
from deploy.checks.launch import check_plain_folders
from deploy.deployment import Deployment
from deploy.engines.site import kits_flavour
from deploy.environment.check import check_stub_fits
from deploy.environment.install import MARKER
from deploy.environment.standard import StandardEnvironment, standard_environment
from deploy.errors import EnvironmentSetupError, KitError, TritonSetupError
from deploy.paths import cache_folder
from deploy.server.distribution import TritonDistribution, check_libc, distribution_folder
from deploy.server.release import find_release

SUBJECT = "engine local"


def environment_findings(deployment: Deployment, level: Level) -> Iterator[Finding]:
    """Return whether a server can run on this host without a container.

    Args:
        deployment: What is wanted.
        level: How bad it is if it cannot.
    """
    try:
        release = find_release(deployment.triton)
        standard = standard_environment(kits_flavour(deployment))
        root = distribution_folder(cache_folder(), release, standard.lock.python)
        triton = TritonDistribution(root=root, stub_python=standard.lock.python)
        check_plain_folders(deployment)
        if not root.exists():
            check_libc(release)
        _check_executable(cache_folder())
        _check_whole(triton)
        made = _check_environment(standard, triton)
    except KitError as error:
        yield wrong(SUBJECT, error, level)
        return
    python = standard.interpreter.version
    there = "unpacked" if root.exists() else "fetched by the first start"
    yield ok(SUBJECT, f"Triton {release.server} (release {release.release}): {there}")
    what = f"Python {python}, as the stub is built for" if made else "made by the first start"
    yield ok(SUBJECT, f"execution environment: {what}")


def _check_environment(standard: StandardEnvironment, triton: TritonDistribution) -> bool:
    """Check the execution environment; return whether it is made at all."""
    environment = standard.environment
    if not standard.is_made:
        return False
    check_stub_fits(environment, triton)
    if not (standard.packages / MARKER).exists():
        raise EnvironmentSetupError(
            f"execution environment {environment.folder}: the folder of its locked packages, "
            f"{standard.packages.name}, is gone",
            f"rm -r {environment.folder}, and python3 deploy/prepare.py makes both anew",
        )
    return True


def _check_whole(triton: TritonDistribution) -> None:
    if not triton.root.exists():
        return
    for path in (triton.executable, triton.stub):
        if not os.access(path, os.X_OK):
            raise TritonSetupError(
                f"{path} is missing, or cannot be executed",
                f"rm -r {triton.root}, and python3 deploy/prepare.py unpacks it anew",
            )


def _check_executable(cache: Path) -> None:
    there = next(path for path in (cache, *cache.parents) if path.exists())
    if os.statvfs(there).f_flag & os.ST_NOEXEC:
        raise EnvironmentSetupError(
            f"{there} is mounted noexec: nothing in it can be started",
            "set XDG_CACHE_HOME to a folder of another file system",
        )
