"""The image's base: a small Debian, or NVIDIA's own Triton image."""

import hashlib
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import docker
from docker.errors import APIError, ImageNotFound

from deploy.artefacts.docker_client import first_line
from deploy.environment.tars import CONTENT_EPOCH
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.files import locked, sha256_of, work_folder
from deploy.host.paths import cache_folder
from deploy.host.programs import run

Base = Literal["slim", "ngc"]

# Most labels have names of the OCI image specification, "Pre-Defined Annotation Keys".
OCI_LABELS = "org.opencontainers.image"

SUITE = "bookworm"
# What Triton is linked to, the shell that starts it and its stubs, and what those need.
_PACKAGES = (
    "base-files,base-passwd,bash,coreutils,dash,diffutils,dpkg,grep,libc-bin,libstdc++6,mawk,"
    "sed,tar,zlib1g"
)
_SEARCH_PATH = "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class BaseImage:
    """A base image: what ``FROM`` gets, and its name in its registry.

    ``digest`` (``sha256:...``) is that of its manifest; without a registry, of the tar it was
    imported from, or its id; empty if unknown.
    """

    reference: str
    name: str
    digest: str

    @property
    def labels(self) -> dict[str, str]:
        facts = {f"{OCI_LABELS}.base.name": self.name, f"{OCI_LABELS}.base.digest": self.digest}
        return {name: value for name, value in facts.items() if value}

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}" if self.digest else self.name


def base_name(base: Base, release: str) -> str:
    if base == "ngc":
        return f"nvcr.io/nvidia/tritonserver:{release}-py3"
    return f"docker.io/library/debian:{SUITE}-slim"


def ensure_base(
    client: docker.DockerClient, *, name: str, digest: str | None, say: Say
) -> BaseImage:
    """Return the base: pulled, else the one in the engine, else (Debian) made here.

    With a ``digest`` (``sha256:...``), it must have that one.
    """
    repository, _, tag = name.rpartition(":")
    pinned = f"{repository}@{digest}" if digest else name
    say(f"asking the registry for {pinned}")
    reason = _pull(client, repository, digest or tag, say)
    try:
        return _describe(client, pinned, name)
    except ImageNotFound:
        if digest is None and name == base_name("slim", ""):
            tar = debian_tar(say)
            base = imported_base(tar)
            try:
                client.images.get(base.reference)
            except ImageNotFound:
                repository, _, tag = base.reference.rpartition(":")
                client.api.import_image_from_file(
                    str(tar), repository=repository, tag=tag, changes=[_SEARCH_PATH]
                )
            return base
    raise BuildError(
        f"cannot pull {pinned}: {reason}",
        "docker pull it on a machine with a network, docker save it, docker load it here",
    )


def _pull(client: docker.DockerClient, repository: str, tag: str, say: Say) -> str:
    """Pull an image; return why that failed, if it did."""
    try:
        for message in client.api.pull(repository, tag=tag, stream=True, decode=True):
            if "error" in message:
                raise APIError(message["error"], explanation=message["error"])
            if str(message.get("status", "")).endswith("complete"):
                say(f"pulling {repository}: {message.get('id')} {message['status'].lower()}")
    except APIError as error:
        reason = first_line(error)
        say(f"the registry does not provide it: {reason}")
        return reason
    return ""


def _describe(client: docker.DockerClient, reference: str, name: str) -> BaseImage:
    image = client.images.get(reference)
    # The engine shortens names of Docker Hub.
    repository = name.rpartition(":")[0].removeprefix("docker.io/").removeprefix("library/")
    digests = dict(text.split("@") for text in image.attrs.get("RepoDigests") or ())
    return BaseImage(reference=reference, name=name, digest=digests.get(repository, str(image.id)))


def bootstrap_command(out: str = "-") -> tuple[str, ...]:
    return (
        "mmdebstrap",
        "--quiet",
        "--variant=custom",
        "--hook-dir=/usr/share/mmdebstrap/hooks/merged-usr",
        f"--include={_PACKAGES}",
        "--dpkgopt=force-unsafe-io",
        *(
            f"--dpkgopt=path-exclude=/usr/share/{folder}/*"
            for folder in ("doc", "info", "locale", "man")
        ),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        # mmdebstrap copies this host's name and resolver for the installation.
        '--customize-hook=: >"$1/etc/hostname"; : >"$1/etc/resolv.conf"',
        SUITE,
        out,
    )


def debian_tar(say: Say) -> Path:
    """Return a minimal Debian as a tar, made by mmdebstrap if it is not in the cache."""
    recipe = hashlib.sha256("\0".join(bootstrap_command()).encode()).hexdigest()[:12]
    target = cache_folder() / "bases" / f"{SUITE}-{recipe}.tar"
    with locked(target.with_suffix(".lock")):
        if target.exists():
            return target
        if shutil.which("mmdebstrap") is None:
            raise BuildError(
                f"no registry provides debian:{SUITE}-slim, and mmdebstrap, which would make one, "
                "is not installed",
                "sudo apt-get install mmdebstrap (Debian, Ubuntu)",
            )
        say("making a minimal Debian with mmdebstrap")
        with work_folder(target) as scratch:
            partial = scratch / target.name
            variables = {**os.environ, "SOURCE_DATE_EPOCH": str(CONTENT_EPOCH)}
            if os.geteuid() == 0:
                # Killed, it may leave its tree behind. (An ordinary user's has to be where root
                # of the user namespace can go.)
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
    """Return mmdebstrap's reason in one line; raise if this user may not run it."""
    reasons = [line.removeprefix("E: ") for line in said.splitlines() if line.startswith("E: ")]
    if any("chroot mode" in reason or "/etc/subuid" in reason for reason in reasons):
        raise BuildError(
            "mmdebstrap cannot make a minimal Debian as this user, who has no subordinate user ids",
            "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER, "
            "or build once as root and copy its cache folder's bases/ here",
        )
    return reasons[0][:300] if reasons else ""


def imported_base(tar: Path) -> BaseImage:
    """Return the base that :func:`debian_tar` made, named by its content on every machine."""
    digest = sha256_of(tar)
    name = f"numlkit/debian:{SUITE}-{digest[:12]}"
    return BaseImage(reference=name, name=name, digest=f"sha256:{digest}")
