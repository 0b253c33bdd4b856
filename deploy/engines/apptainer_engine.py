"""Apptainer: an instance of the kit's .sif, of the calling user, on the host's network."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deploy.building.preflight import Room, check_room
from deploy.building.request import sif_name
from deploy.deployment import Deployment
from deploy.engines.base import end_process, process_with_identity
from deploy.engines.container import ContainerEngine, ImageInUse, image_in_use
from deploy.engines.site import fit_flavours
from deploy.errors import LaunchError
from deploy.failures.apptainer import complaint
from deploy.failures.table import Diagnosis, diagnose
from deploy.images.base import base_name
from deploy.paths import CHECKOUT
from deploy.plan import LaunchPlan
from deploy.server.ports import choose_ports
from deploy.sif.tools import install_hint_here
from deploy.state import DeploymentFolder, DeploymentState
from deploy.supervisor.instance import (
    config_folder,
    instance_command,
    scratch_folder,
    stop_instance,
)


class ApptainerEngine(ContainerEngine):
    """Runs tritonserver in an instance of a .sif."""

    name = "apptainer"

    def image(self, *, deployment: Deployment) -> ImageInUse:
        """Return the .sif that a launch would start."""
        program = shutil.which("apptainer")
        if program is None:
            raise LaunchError("apptainer is not installed", install_hint_here())
        sif, remedy = _place(deployment)
        if not sif.is_file():
            raise LaunchError(f"{sif}: no such file", remedy)
        done = subprocess.run(
            [program, "inspect", "--json", "--labels", str(sif)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            known = diagnose(done.stderr) or Diagnosis(
                f"{sif}: apptainer cannot read it: {complaint(done.stderr)[:300]}",
                "copy or build it again",
            )
            raise LaunchError(known.cause, known.remedy)
        labels = json.loads(done.stdout)["data"]["attributes"]["labels"]
        facts = sif.stat()
        # Reading half a gigabyte at every look would cost more than it tells.
        digest = f"{sif} {facts.st_size} {facts.st_mtime_ns}"
        return image_in_use(str(sif), digest, labels, deployment)

    def plan(self, *, deployment: Deployment) -> LaunchPlan:
        """Return what a launch would do."""
        listen, http_listen = deployment.listen, deployment.http_listen
        ports = choose_ports(listen, deployment.ports, http_listen=http_listen)
        return self.planned(
            deployment, ports=ports, listen=listen, http_listen=http_listen, inner_ports=ports
        )

    def require_room(self, deployment: Deployment, extracted: int) -> None:
        """Check the disk: the instance's /tmp is in the deployment's folder."""
        if extracted:
            folder = DeploymentFolder(deployment.name).path
            what = "packed environments, extracted"
            check_room([Room(folder, extracted, what, "set XDG_STATE_HOME")])

    def command(self, plan: LaunchPlan) -> Sequence[str]:
        """Return the words of a command that starts the planned server by hand."""
        return (
            "env",
            f"APPTAINER_CONFIGDIR={config_folder(plan.log.parent)}",
            *instance_command(plan),
        )

    def lay_out(self, *, deployment: Deployment, folder: DeploymentFolder) -> None:
        """Make the folders, too, that Apptainer and the instance write to."""
        super().lay_out(deployment=deployment, folder=folder)
        config_folder(folder.path).mkdir(exist_ok=True)
        scratch_folder(folder.path).mkdir(mode=0o700, exist_ok=True)

    def clear(self, *, folder: DeploymentFolder, state: DeploymentState) -> None:
        """End server and instance; what they wrote is gone with the instance."""
        plan = folder.plan()
        server = state.server.process() if state.server is not None else None
        if server is None and plan is not None:
            server = process_with_identity(plan.identity)
        if server is not None:
            end_process(server)
        if state.container is not None:
            stop_instance(state.container, folder.path)


def _place(deployment: Deployment) -> tuple[Path, str]:
    """Return where the .sif is, or should be, and how it comes there."""
    if deployment.image is not None:
        return Path(deployment.image).absolute(), "--image PATH.sif"
    folder = CHECKOUT / "dist"
    if deployment.env == "packed":
        sif = folder / f"tritonserver-{deployment.triton}.sif"
        return sif, f"apptainer pull {sif} docker://{base_name('ngc', deployment.triton)}"
    flavours = fit_flavours(deployment)
    places = [folder / sif_name(deployment.triton, flavour) for flavour in flavours]
    build = f"python3 deploy/build.py --target sif --flavour {flavours[0]}"
    return next((sif for sif in places if sif.is_file()), places[0]), build
