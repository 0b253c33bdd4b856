"""The artefact to publish: what ``build`` made, signed if requested."""

from __future__ import annotations

import shutil
from pathlib import Path

import docker
from docker.errors import APIError, ImageNotFound

from deploy.artefacts.docker_client import first_line
from deploy.artefacts.manifest import Artefact, Kind, read_manifest
from deploy.artefacts.request import image_name, sif_name
from deploy.artefacts.signing import sign_built, verify_built, would_sign
from deploy.artefacts.statements import CHECKSUMS, provenance_of, read_checksums, sbom_of, vex_of
from deploy.artefacts.tools import install_hint
from deploy.host.console import Say
from deploy.host.errors import DeploymentError, PublishError
from deploy.host.failures import complaint
from deploy.host.files import sha256_of
from deploy.host.programs import run
from deploy.publishing.place import Order

CHECK = "/opt/numl/bin/check"  # runs every model once, and compares


def built_sif(order: Order) -> tuple[Path, Artefact]:
    """Return the ``.sif`` to publish, and its entry in the manifest beside it.

    If a dry run leaves it unsigned, its digest is not known yet, and empty.

    Raises:
        PublishError: If it is missing, or is not what ``build`` made.
        SignatureError: If it cannot be signed, or its signature does not match.
    """
    _require_own_weights(order)
    sif, build = order.artefact, "numlkit build --target sif"
    if sif is None:
        flavours = order.resolved.fitting_flavours
        places = [order.built / sif_name(order.triton, each) for each in flavours]
        sif = next((path for path in places if path.is_file()), places[0])
        build += f" --flavour {flavours[0]}"
    if not sif.is_file():
        raise PublishError(f"{sif}: no such file", f"{build}, or --image FILE.sif")
    made = _entry(sif.parent, "sif", sif.name, build)
    if made.sha256 != sha256_of(sif):
        raise PublishError(
            f"{sif} is not what was built: manifest.json has a different digest", build
        )
    if not shutil.which("apptainer"):
        cause = "apptainer is not installed: the .sif cannot be checked"
        raise PublishError(cause, install_hint())
    return sif, _signed(sif.parent, made, order)


def built_image(order: Order, client: docker.DockerClient) -> Artefact:
    """Return the manifest's entry of the image to publish, which is in the Docker engine.

    Raises:
        PublishError: If it is missing, or is not what ``build`` made.
        SignatureError: If it cannot be signed, or its signature does not match.
    """
    _require_own_weights(order)
    flavours = order.resolved.fitting_flavours
    names = [image_name(order.triton, each) for each in flavours]
    build = f"numlkit build --target image --flavour {flavours[0]}"
    there = {each.name for each in read_manifest(order.built).artefacts if each.kind == "image"}
    name = next((name for name in names if name in there), names[0])
    made = _entry(order.built, "image", name, build)
    try:
        found = str(client.images.get(name).id)
    except ImageNotFound:
        raise PublishError(f"the Docker engine has no image {name}", build) from None
    if found != made.sha256:
        raise PublishError(f"{name} is not what was built: manifest.json has a different id", build)
    return _signed(order.built, made, order)


def check_sif(sif: Path) -> None:
    """Have every model in a ``.sif``, or in a sandbox, give its reference output."""
    # Who may write to its folder may have put another there: it sees nothing of this host.
    run(
        ["apptainer", "exec", "--cleanenv", "--containall", "--no-privs", sif, CHECK],
        failed=f"{sif}: its own check fails",
        remedy="build it again; nothing was published",
        error=PublishError,
    )


def check_image(client: docker.DockerClient, image: Artefact, say: Say) -> None:
    """Have every model in an image give its reference output."""
    say("checking its models against their reference outputs")
    why = ""
    try:
        # By its id: somebody may have given its name to another one since.
        container = client.containers.create(
            image.sha256, entrypoint=CHECK, network_mode="none", read_only=True, tmpfs={"/tmp": ""},
            cap_drop=["ALL"],
        )  # fmt: skip
        try:
            container.start()
            status = container.wait()["StatusCode"]
            if status != 0:
                said = container.logs(stdout=False).decode(errors="replace")
                why = complaint(said) or f"exit status {status}"
        finally:
            container.remove(force=True, v=True)
    except APIError as error:
        why = first_line(error)
    if why:
        raise PublishError(
            f"{image.name}: its own check fails: {why}", "build it again; nothing was published"
        )


def _require_own_weights(order: Order) -> None:
    if order.resolved.deployment.checkpoints:
        raise DeploymentError(
            "--checkpoint is for a bucket: an image has the weights that it was built with",
            "mount them over it: numlkit up --checkpoint does so",
        )


def _entry(folder: Path, kind: Kind, name: str, build: str) -> Artefact:
    for each in read_manifest(folder).artefacts:
        if (each.kind, each.name) == (kind, name):
            return each
    raise PublishError(f"{folder} has no manifest.json that names {name}", build)


def _signed(folder: Path, made: Artefact, order: Order) -> Artefact:
    # Nothing may be signed or published that was changed in between.
    sums = read_checksums(folder)
    for name in (sbom_of(made), provenance_of(made), vex_of(made)):
        path = folder / name
        if name in sums and not (path.is_file() and sha256_of(path) == sums[name]):
            raise PublishError(
                f"{path} is not what was built: {CHECKSUMS} has a different digest",
                f"numlkit build --target {made.kind}",
            )
    if order.sign is not None:
        sign = would_sign if order.dry_run else sign_built
        made = sign(folder, made, order.sign, order.verify)
    if order.verify is not None and not (order.sign is not None and order.dry_run):
        verify_built(folder, made, order.verify)
    return made
