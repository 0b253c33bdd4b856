"""What the image stands on: a small Debian, or NVIDIA's own Triton image."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import docker
from docker.errors import APIError, ImageNotFound

from deploy.console import Say
from deploy.errors import BuildError
from deploy.files import locked, sha256_of, work_folder
from deploy.images.engine import first_line
from deploy.images.tars import CONTENT_EPOCH
from deploy.programs import run

Base = Literal["slim", "ngc"]

SUITE = "bookworm"
# What Triton is linked to, the shell that starts it and its stubs, and what these need.
_PACKAGES = (
    "base-files",
    "base-passwd",
    "bash",
    "coreutils",
    "dash",
    "diffutils",
    "dpkg",
    "grep",
    "libc-bin",
    "libstdc++6",
    "mawk",
    "sed",
    "tar",
    "zlib1g",
)
_SEARCH_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class BaseImage:
    """A base that lies in the engine.

    Attributes:
        reference: What the Dockerfile's ``FROM`` gets.
        name: Its name for people, as in ``docker.io/library/debian:bookworm-slim``.
        digest: ``sha256:...`` of its manifest; where it came from no registry, of the tar
            that it was imported from, or of the image itself; empty if it is not known.
    """

    reference: str
    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else self.name


def base_name(base: Base, release: str) -> str:
    """Return the name under which a registry has the base.

    Args:
        base: Which base.
        release: NVIDIA's release of Triton, as in ``24.10``.
    """
    if base == "ngc":
        return f"nvcr.io/nvidia/tritonserver:{release}-py3"
    return f"docker.io/library/debian:{SUITE}-slim"


def ensure_base(
    client: docker.DockerClient, *, name: str, digest: str | None, cache: Path, say: Say
) -> BaseImage:
    """Return the base, pulled, taken as it is in the engine, or (Debian) made.

    Args:
        client: The engine.
        name: As :func:`base_name` gives it.
        digest: ``sha256:...`` of the one that it must be, or None: the registry's newest;
            where no registry is reachable, the one in the engine.
        cache: The kit's cache folder.
        say: Is told what happens.

    Raises:
        BuildError: If it cannot be had.
    """
    repository, _, tag = name.rpartition(":")
    pinned = f"{repository}@{digest}" if digest else name
    say(f"asking the registry for {pinned}")
    reason = _pull(client, repository, digest or tag, say)
    try:
        return _describe(client, pinned, name)
    except ImageNotFound:
        if digest is None and name == base_name("slim", ""):
            return _ensure_imported(client, debian_tar(cache, say))
    raise BuildError(
        f"cannot pull {pinned}: {reason}",
        "docker pull it on a machine with a network, docker save it, docker load it here",
    )


def _pull(client: docker.DockerClient, repository: str, tag: str, say: Say) -> str:
    """Pull an image; return why not, in one line, or nothing."""
    try:
        for message in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in message:
                raise APIError(message["error"], explanation=message["error"])
            if str(message.get("status", "")).endswith("complete"):
                say(f"pulling {repository}: {message.get('id')} {message['status'].lower()}")
    except APIError as error:
        reason = first_line(error)
        say(f"not from the registry: {reason}")
        return reason
    return ""


def _describe(client: docker.DockerClient, reference: str, name: str) -> BaseImage:
    image = client.images.get(reference)
    # The engine leaves out what every name without a registry begins with.
    repository = name.rpartition(":")[0].removeprefix("docker.io/").removeprefix("library/")
    digests = dict(text.split("@") for text in image.attrs.get("RepoDigests") or ())
    return BaseImage(reference=reference, name=name, digest=digests.get(repository, str(image.id)))


def bootstrap_command(out: str = "-") -> tuple[str, ...]:
    """Return the command that writes a minimal Debian as a tar.

    Args:
        out: The tar; ``-``: standard output.
    """
    return (
        "mmdebstrap",
        "--quiet",
        "--variant=custom",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        f"--include={','.join(_PACKAGES)}",
        "--dpkgopt=force-unsafe-io",
        *(
            f"--dpkgopt=path-exclude=/usr/share/{folder}/*"
            for folder in ("doc", "info", "locale", "man")
        ),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # This host's name and resolver are put there for the installation.
        '--customize-hook=: >"$1/etc/hostname"; : >"$1/etc/resolv.conf"',
        SUITE,
        out,
    )


def debian_tar(cache: Path, say: Say) -> Path:
    """Return the minimal Debian as a tar, made by mmdebstrap if the cache does not have it.

    Args:
        cache: The kit's cache folder.
        say: Is told what happens.

    Raises:
        BuildError: If it cannot be made.
    """
    recipe = hashlib.sha256("\0".join(bootstrap_command()).encode()).hexdigest()[:12]
    target = cache / "bases" / f"{SUITE}-{recipe}.tar"
    with locked(target.with_suffix(".lock")):
        if target.exists():
            return target
        if shutil.which("mmdebstrap") is None:
            raise BuildError(
                f"no registry has debian:{SUITE}-slim, and mmdebstrap, which makes one, is missing",
                "sudo apt-get install mmdebstrap (Debian, Ubuntu)",
            )
        say("making a minimal Debian with mmdebstrap")
        with work_folder(target) as scratch:
            partial = scratch / target.name
            variables = {**os.environ, "SOURCE_DATE_EPOCH": str(CONTENT_EPOCH)}
            if os.geteuid() == 0:
                # Ended early it may leave its tree. (Another user's must be where root's own
                # stand-in in a user namespace can go.)
                variables["TMPDIR"] = str(scratch)
            run(
                bootstrap_command(str(partial)),
                failed="cannot make a minimal Debian",
                remedy="check the network and apt's settings (apt-get update), then repeat the "
                "command",
                environment=variables,
                explain=_reason,
            )
            partial.rename(target)
    return target


def _reason(said: str) -> str:
    """Return what mmdebstrap fails at, in one line; empty if it does not say.

    Raises:
        BuildError: If it is not the network or apt, which need another remedy.
    """
    reasons = [line.removeprefix("E: ") for line in said.splitlines() if line.startswith("E: ")]
    if any("chroot mode" in reason or "/etc/subuid" in reason for reason in reasons):
        raise BuildError(
            "mmdebstrap cannot make a minimal Debian as this user, who has no subordinate user ids",
            "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER, "
            "or build once as root and copy its cache folder's bases/ here",
        )
    return reasons[0][:300] if reasons else ""


def imported_base(tar: Path) -> BaseImage:
    """Return what a minimal Debian is called: by its content, on every machine the same.

    Args:
        tar: As :func:`debian_tar` gives it.
    """
    digest = sha256_of(tar)
    name = f"numlkit/debian:{SUITE}-{digest[:12]}"
    return BaseImage(reference=name, name=name, digest=f"sha256:{digest}")


def _ensure_imported(client: docker.DockerClient, tar: Path) -> BaseImage:
    base = imported_base(tar)
    try:
        client.images.get(base.reference)
    except ImageNotFound:
        repository, _, tag = base.reference.rpartition(":")
        client.api.import_image_from_file(
            str(tar), repository=repository, tag=tag, changes=[_SEARCH_PATH]
        )
    return base
