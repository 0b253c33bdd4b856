"""The image that the Docker engine builds, and its base: a small Debian, or NVIDIA's image."""

import hashlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import docker
from docker.errors import APIError, ImageNotFound
from requests.exceptions import ConnectionError as ConnectionBrokenError

from deploy.artefacts.docker_client import first_line
from deploy.environment.check import wrong_model
from deploy.environment.tars import CONTENT_EPOCH, tar_chunks
from deploy.host.command_line import quote
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.failures import complaint, diagnose, plain_lines
from deploy.host.files import locked, sha256_of, size_of, work_folder
from deploy.host.paths import cache_folder
from deploy.host.programs import run

Base = Literal["slim", "ngc"]

# Most labels have names of the OCI image specification, "Pre-Defined Annotation Keys".
OCI_LABELS = "org.opencontainers.image"

# Debian's suites that can be a base, and the glibc in each.
SUITES = {"bookworm": (2, 36), "trixie": (2, 41)}
# What Triton is linked to, the shell that starts it and its stubs, and what those need.
_PACKAGES = (
    "base-files,base-passwd,bash,coreutils,dash,diffutils,dpkg,grep,libc-bin,libstdc++6,mawk,"
    "sed,tar,zlib1g"
)
_STEP = re.compile(r"Step (\d+)/(\d+) : (.+)")
_BUILT = re.compile(r"Successfully built ([0-9a-f]+)")
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


def stock_name(release: str) -> str:
    """Return the name of NVIDIA's image of a release, such as ``24.10``."""
    return f"nvcr.io/nvidia/tritonserver:{release}-py3"


def debian_name(glibc: tuple[int, int]) -> str:
    """Return the name of the oldest Debian with this glibc or a later one."""
    for suite, there in SUITES.items():
        if there >= glibc:
            return f"docker.io/library/debian:{suite}-slim"
    wanted, newest = (".".join(map(str, v)) for v in (glibc, max(SUITES.values())))
    raise BuildError(
        f"this Triton, or a Python here, needs glibc {wanted}; the newest base has {newest}",
        "use an older Triton (--triton), or a Python built on an older system (--python)",
    )


def suite_of(name: str) -> str | None:
    """Return which of the suites a base of that name is; None if it is none."""
    return next((suite for suite in SUITES if name == debian_name(SUITES[suite])), None)


def ensure_base(
    client: docker.DockerClient, *, name: str, digest: str | None, say: Say
) -> BaseImage:
    """Return the base: pulled, else the engine's local copy, else (Debian) bootstrapped here.

    With a ``digest`` (``sha256:...``), it must have that one.
    """
    repository, _, tag = name.rpartition(":")
    pinned = f"{repository}@{digest}" if digest else name
    say(f"asking the registry for {pinned}")
    reason = _pull(client, repository, digest or tag, say)
    try:
        return _describe(client, pinned, name, digest)
    except ImageNotFound:
        suite = suite_of(name)
        if digest is None and suite is not None:
            tar = debian_tar(suite, say)
            base = imported_base(suite, tar)
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
        "docker pull it on a machine with network access, docker save it, and docker load it here",
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


def _describe(client: docker.DockerClient, reference: str, name: str, pin: str | None) -> BaseImage:
    image = client.images.get(reference)
    # The engine shortens names of Docker Hub.
    repository = name.rpartition(":")[0].removeprefix("docker.io/").removeprefix("library/")
    known = (text.split("@") for text in image.attrs.get("RepoDigests") or ())
    # Of one repository an image may have several: an index's, and those of manifests in it.
    digests = sorted(digest for place, digest in known if place == repository)
    recorded = pin or next(iter(digests), str(image.id))
    return BaseImage(reference=reference, name=name, digest=recorded)


def bootstrap_command(suite: str, out: str = "-") -> tuple[str, ...]:
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
        suite,
        out,
    )


def debian_tar(suite: str, say: Say) -> Path:
    """Return a minimal Debian as a tar, made by mmdebstrap if it is not in the cache."""
    recipe = hashlib.sha256("\0".join(bootstrap_command(suite)).encode()).hexdigest()[:12]
    target = cache_folder() / "bases" / f"{suite}-{recipe}.tar"
    with locked(target.with_suffix(".lock")):
        if target.exists():
            # Nothing renews it: who builds has to know which security updates it lacks.
            made = datetime.fromtimestamp(target.stat().st_mtime, timezone.utc)
            again = f"rm {quote(str(target))} for a new one"
            say(f"using the Debian made here on {made:%Y-%m-%d} ({again})")
            return target
        if shutil.which("mmdebstrap") is None:
            raise BuildError(
                f"no registry provides debian:{suite}-slim, and mmdebstrap, which could make one, "
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
                bootstrap_command(suite, str(partial)),
                failed="cannot make a minimal Debian",
                remedy="check the network and apt's settings (apt-get update), then run the "
                "command again",
                environment=variables,
                explain=_why_not_made,
            )
            partial.rename(target)
    return target


def _why_not_made(said: str) -> str:
    """Return mmdebstrap's reason in one line; raise if this user may not run it."""
    why = complaint(said)
    if "chroot mode" in why or "/etc/subuid" in why:
        raise BuildError(
            "mmdebstrap cannot make a minimal Debian as this user, who has no subordinate user ids",
            "sudo usermod --add-subuids 100000-165535 --add-subgids 100000-165535 $USER, "
            "or build once as root and copy its cache folder's bases/ here",
        )
    return why


def imported_base(suite: str, tar: Path) -> BaseImage:
    """Return the base that :func:`debian_tar` made; its name is derived from its content."""
    digest = sha256_of(tar)
    name = f"numlkit/debian:{suite}-{digest[:12]}"
    return BaseImage(reference=name, name=name, digest=f"sha256:{digest}")


@dataclass(frozen=True)
class BuiltImage:
    """An image in the engine; ``size`` is in bytes, unpacked."""

    tag: str
    id: str
    size: int


def build_image(
    client: docker.DockerClient,
    context: Path,
    *,
    base: BaseImage,
    labels: Mapping[str, str],
    tag: str,
    say: Say,
) -> BuiltImage:
    """Build the image and tag it; an older image keeps the tag until then.

    :func:`deploy.artefacts.context.make_context` fills the context. The base adds its labels.
    """
    try:
        messages = client.api.build(
            fileobj=_with_progress(tar_chunks(context), size_of(context), say),
            custom_context=True,
            # The context has all that is needed.
            network_mode="none",
            use_config_proxy=False,
            buildargs={"BASE": base.reference},
            labels={**labels, **base.labels},
            rm=True,
            forcerm=True,
            decode=True,
        )
        built = follow(messages, say)
        repository, _, name = tag.rpartition(":")
        client.api.tag(built, repository, name, force=True)
        # By its id: another user's build may have taken the tag already.
        image = client.images.get(built)
    except (APIError, ConnectionBrokenError) as error:
        cause = f"the Docker engine cannot build the image: {first_line(error)}"
        raise BuildError(cause, "its log may say more: journalctl -u docker") from None
    return BuiltImage(tag=tag, id=str(image.id), size=int(image.attrs["Size"]))


def follow(messages: Iterable[Mapping[str, Any]], say: Say) -> str:
    """Read the engine's messages; return the image's id, or raise the failing step's reason."""
    step, output, built = "the build", "", ""
    for message in messages:
        if "error" in message:
            words = reason(output) or str(message["error"]).strip().splitlines()[-1]
            # The server says in its log only why a model is not ready.
            known = diagnose(output) if words.endswith("not ready") else None
            words += f": {known.cause}" if known is not None else ""
            cause = f"the image cannot be built: {words} ({step})"
            raise BuildError(cause, "fix that and run the command again; finished layers are kept")
        for line in str(message.get("stream", "")).splitlines():
            if found := _STEP.match(line):
                step, output = found[3].strip(), ""
                say(f"step {found[1]} of {found[2]}: {step[:60]}")
            elif found := _BUILT.match(line):
                built = found[1]
            else:
                output += f"{line}\n"
    if not built:
        raise BuildError(f"the Docker engine ended the build without a result ({step})")
    return built


def reason(output: str) -> str:
    """Return why a step that printed ``output`` failed: its last words; empty if it has none."""
    progress = ("{", "--->", "Removing intermediate container")
    others = [line for line in plain_lines(output) if not line.startswith(progress)]
    return wrong_model(output) or next(reversed(others), "")


def _with_progress(chunks: Iterator[bytes], total: int, say: Say) -> Iterator[bytes]:
    sent, shown = 0, 0
    for chunk in chunks:
        sent += len(chunk)
        if total and sent * 10 // total > shown:
            shown = sent * 10 // total
            say(f"sending {total / 1e9:.2f} GB to the engine: {min(shown, 10)}0%")
        yield chunk
