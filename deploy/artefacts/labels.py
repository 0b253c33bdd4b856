"""The labels of an image or a .sif, and the source that it is built from."""

import json
import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from deploy import __version__
from deploy.artefacts.image import OCI_LABELS
from deploy.environment.environment import Environment
from deploy.environment.serving import serving_digest
from deploy.host.errors import BuildError
from deploy.host.paths import ENVIRONMENT_SOURCE, IS_INSTALLED
from deploy.host.programs import run
from deploy.triton.release import TritonRelease

_OWN = "org.numlkit"
FLAVOUR_LABEL = f"{_OWN}.flavour"
TRITON_LABEL = f"{_OWN}.triton.release"
SERVER_LABEL = f"{_OWN}.triton.server"
TRITON_DIGEST_LABEL = f"{_OWN}.triton.digest"
PYTHON_LABEL = f"{_OWN}.python"
ENVIRONMENT_LABEL = f"{_OWN}.environment.digest"
SERVING_LABEL = f"{_OWN}.serving.digest"
SOURCE_FILE = "source.json"
# What a revision says about a checkout with changed files, and about no checkout.
DIRTY, UNKNOWN = "-dirty", "unknown"
# The last time (Unix, s) that a file in a .sif can have.
_LATEST = (1 << 32) - 1


@dataclass(frozen=True)
class Source:
    """The checkout that is built.

    ``revision`` is the commit, with ``-dirty`` if files have changed since, or ``unknown``;
    ``epoch`` (Unix, s) the time of everything in the artefacts; ``url`` where the repository is
    published, or empty.
    """

    revision: str
    epoch: int
    url: str


def find_source(checkout: Path) -> Source:
    """Describe a checkout; its time is ``SOURCE_DATE_EPOCH``, else the commit's, else now.

    An installed kit is described by the checkout that its wheel was made from.
    """
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given is not None and not (given.isdecimal() and int(given) <= _LATEST):
        cause = f"SOURCE_DATE_EPOCH={given!r} is not a number of seconds up to {_LATEST}"
        raise BuildError(cause, "date +%s prints one")
    if IS_INSTALLED:
        source = Source(**json.loads((checkout / SOURCE_FILE).read_text(encoding="utf-8")))
        return replace(source, epoch=int(given)) if given is not None else source
    commit = _git(checkout, "log", "-1", "--no-show-signature", "--format=%H %ct").split()
    epoch = int(given or (commit[1] if commit else time.time()))
    if not commit:
        return Source(revision=UNKNOWN, epoch=epoch, url="")
    dirty = DIRTY if _git(checkout, "status", "--porcelain", "--untracked-files=no") else ""
    remote = _git(checkout, "config", "--get", "remote.origin.url")
    return Source(revision=commit[0] + dirty, epoch=epoch, url=published(remote))


def published(remote: str) -> str:
    """Return a remote as a URL without user and password; empty for a folder of this host."""
    found = re.fullmatch(r"(?:https?|ssh|git)://(?:[^@/]*@)?(.+)|[^@/:]+@([^:/]+):(.+)", remote)
    if found is None:
        return ""
    return f"https://{found[1] or f'{found[2]}/{found[3]}'}".removesuffix(".git")


def _git(checkout: Path, *words: str) -> str:
    # Another user's checkout is fine: nothing in it is executed.
    command = ["git", "-c", f"safe.directory={checkout}", "-C", str(checkout), *words]
    with suppress(BuildError, FileNotFoundError):
        return run(command, failed="git failed").strip()
    return ""


def labels(source: Source, environment: Environment, triton: TritonRelease) -> dict[str, str]:
    """Return the labels, except the base image's; those without a value are left out."""
    created = datetime.fromtimestamp(source.epoch, timezone.utc)
    everything = {
        f"{OCI_LABELS}.title": "numlkit",
        f"{OCI_LABELS}.description": "NuGraph2 and NuGraph3 served by NVIDIA Triton",
        f"{OCI_LABELS}.licenses": "Apache-2.0",
        f"{OCI_LABELS}.source": source.url,
        f"{OCI_LABELS}.revision": source.revision,
        f"{OCI_LABELS}.created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
        f"{OCI_LABELS}.version": __version__,
        FLAVOUR_LABEL: environment.flavour,
        TRITON_LABEL: triton.release,
        SERVER_LABEL: triton.server,
        TRITON_DIGEST_LABEL: triton.digest,
        PYTHON_LABEL: environment.interpreter.short_version,
        ENVIRONMENT_LABEL: environment.digest,
        SERVING_LABEL: serving_digest(ENVIRONMENT_SOURCE),
    }
    return {name: value for name, value in everything.items() if value}
