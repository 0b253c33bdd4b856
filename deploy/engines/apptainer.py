"""The Apptainer engine: the kit's .sif, run by the calling user on the host's network."""

import io
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

from spython.main import get_client

from deploy.artefacts.cosign import changed
from deploy.artefacts.keys import Signer
from deploy.artefacts.labels import TRITON_LABEL
from deploy.artefacts.request import sif_name
from deploy.artefacts.sif_signature import verify_sif
from deploy.artefacts.tools import find_apptainer, install_hint
from deploy.artefacts.triton import asking, stock_image, version_in
from deploy.deployment.plan import LaunchPlan
from deploy.deployment.state import DeploymentFolder, DeploymentState
from deploy.engines.base import MORE_SHARED_MEMORY, ROOM, Engine
from deploy.engines.container import (
    STOCK_LABEL,
    ContainerEngine,
    ImageInUse,
    has_state,
    image_in_use,
    unpack,
)
from deploy.engines.instance import (
    InstanceServer,
    config_folder,
    init_of,
    instance_command,
    instance_files,
    scratch_folder,
    serves,
    stop_instance,
    stop_unused,
)
from deploy.engines.kept import forget, keep, kept_at
from deploy.engines.leftovers import FIX, LEFTOVERS, SHARED_MEMORY
from deploy.engines.resolved import Resolved
from deploy.engines.server import end_process
from deploy.engines.source import Source, find_source
from deploy.host.console import Say
from deploy.host.errors import BuildError, KitError, LaunchError
from deploy.host.failures import complaint, diagnose
from deploy.host.files import marks_of, sha256_of, work_folder
from deploy.host.finding import Finding, Level, ok, wrong
from deploy.host.paths import DIST, deployments_folder
from deploy.host.room import Room, check_room, check_temporary_folder, file_system_of, size

_TMPDIR = "APPTAINER_TMPDIR"  # Apptainer's own variable; it takes precedence over TMPDIR
_ANSWER_S = 120.0
_FUSE = Path("/dev/fuse")
_PROC_SYS = Path("/proc/sys")
_STARTERS = ("libexec", "lib", "lib64", "lib/*")
# Where one of these is 0, ordinary users cannot create namespaces.
_NAMESPACE_LIMITS = (
    ("user/max_user_namespaces", "sudo sysctl -w user.max_user_namespaces=15000"),
    ("kernel/unprivileged_userns_clone", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
)


def labels_of(sif: Path) -> dict[str, str]:
    """Return the labels of a .sif, as spython reads them."""
    client = get_client(quiet=True)
    # It would start a program named singularity.
    client._init_command = lambda action, flags=None: ["apptainer", *(flags or ()), action]
    try:
        answer = client.inspect(str(sif))
        # It returns Apptainer's message about a failure just as it returns an answer.
        if "return_code" not in answer:
            return {name: str(text) for name, text in answer["attributes"]["labels"].items()}
        said = "".join(answer["message"])
    except OSError as error:
        said = str(error.strerror)
    except (ValueError, LookupError):
        said = "unexpected output from apptainer inspect"
    raise diagnose(said) or LaunchError(
        f"{sif}: apptainer cannot read it: {complaint(said)}",
        "copy or build it again",
    )


def _asked(sif: Path) -> dict[str, str]:
    """Return what the server in a .sif without labels says about itself, as NVIDIA's label."""
    words = ["apptainer", "exec", "--containall", "--no-privs", str(sif), *asking()]
    with suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", timeout=_ANSWER_S, check=False,
        )  # fmt: skip
        server = version_in(done.stdout)
        if server is not None:
            return {STOCK_LABEL: server}
    return {}


def is_setuid(program: Path) -> bool:
    places = [f"{place}/apptainer/bin/starter-suid" for place in _STARTERS]
    starters = [path for place in places for path in program.resolve().parents[1].glob(place)]
    return any(path.stat().st_mode & 0o4000 for path in starters)


def obstacles() -> Iterator[tuple[str, str]]:
    """Yield what keeps an ordinary user from running a .sif without a setuid starter, and a fix."""
    for name, opening in _NAMESPACE_LIMITS:
        path = _PROC_SYS / name
        if path.exists() and path.read_text().strip() == "0":
            cause = f"ordinary users cannot create namespaces: {name.replace('/', '.')} is 0"
            yield cause, f"{opening}, or install apptainer-suid"
    if not _FUSE.exists():
        cause = "there is no /dev/fuse: ordinary users cannot mount a .sif"
        yield cause, "sudo modprobe fuse, or install apptainer-suid"
    elif not os.access(_FUSE, os.R_OK | os.W_OK):
        cause = "this user may not open /dev/fuse, and so cannot mount a .sif"
        yield cause, "sudo chmod 666 /dev/fuse (its usual mode)"


class ApptainerEngine(ContainerEngine):
    """Runs tritonserver in an instance of a .sif, of which the deployment has its own copy."""

    name = "apptainer"
    reason = "its .sif is here"
    server_type = InstanceServer
    _signer: Signer | None = None

    @cached_property
    def image(self) -> ImageInUse:
        if shutil.which("apptainer") is None:
            raise LaunchError("apptainer is not installed", install_hint())
        if (name := self.deployment.image or "").startswith("oras://"):
            pull = f"apptainer pull numl.sif {name}, then --image numl.sif"
            raise LaunchError(f"{name} is in a registry", pull)
        source = self._source
        digest, labels = self._read
        image = image_in_use(str(source.path), digest, labels, self.resolved)
        release = source.release
        if release is None or release.image is None:
            return image
        if release.image.sha256 == digest:
            return replace(image, release=release.number)
        if self._signer is not None:
            raise changed(str(source.path), self._signer)
        return image

    @cached_property
    def _read(self) -> tuple[str, dict[str, str]]:
        """The digest of the .sif, and its labels."""
        source = self._source
        if self.deployment.env == "packed":
            # A stock image of several gigabytes, which nobody can verify: it is not read.
            marks, labels = marks_of(source.path), labels_of(source.path)
            if not {STOCK_LABEL, TRITON_LABEL} & set(labels):
                labels |= _asked(source.path)
            return marks, labels
        # One of another length is not read to an end that it may not have.
        if self._signer is not None and source.differs_in_length():
            raise changed(str(source.path), self._signer)
        return sha256_of(source.path), labels_of(source.path)

    def with_verified_image(self, signer: Signer) -> ContainerEngine:
        engine = ApptainerEngine(self.resolved)
        engine._signer = signer
        source = engine._source  # which verifies the statement, where there is one
        if not source.trusted:
            verify_sif(source.path, signer)
        assert engine.image
        return engine

    def serving(self, resolved: Resolved) -> Engine:
        engine = ApptainerEngine(resolved)
        engine._signer = self._signer
        # Models may have been copied out of it: another file must not be started with them.
        engine._source, engine._read = self._source, self._read
        return engine

    def copy_out(self, paths: Sequence[Path], target: Path) -> None:
        target.mkdir(parents=True)
        words = ["tar", "-c", "-C", str(paths[0].parent), *(path.name for path in paths)]
        with work_folder(target) as scratch:
            sif = self._copied(scratch)
            command = ["apptainer", "exec", "--containall", "--no-privs", str(sif), *words]
            done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode != 0:
            said = complaint(done.stderr.decode(errors="replace"))
            raise LaunchError(f"{self.image.name}: its models cannot be read: {said}")
        unpack(io.BytesIO(done.stdout), target)

    def started_as(self, folder: DeploymentFolder) -> str:
        if self.deployment.env == "packed":
            return self.image.name
        return str(kept_at(folder.path, self.image.digest))

    def _keep(self, folder: DeploymentFolder) -> None:
        """Give the deployment its own copy of the .sif."""
        if self.deployment.env != "packed":
            self._copied(folder.path)

    def _copied(self, folder: Path) -> Path:
        """Copy the .sif into a folder that others cannot write to; return the copy.

        What was verified and read at its path is verified and read again, as that may have been
        another file.
        """
        copy = keep(self._source.path, self.image.digest, folder)
        if self._signer is not None and not self._source.trusted:
            verify_sif(copy, self._signer)
        if labels_of(copy) != self.image.labels:
            raise LaunchError(f"{self.image.name} was replaced meanwhile", "run the command again")
        return copy

    def launch(self, *, plan: LaunchPlan, say: Say) -> DeploymentState:
        folder = DeploymentFolder(plan.deployment.name)
        try:
            self._keep(folder)
            return super().launch(plan=plan, say=say)
        except BaseException:
            forget(folder.path)
            raise

    @cached_property
    def _source(self) -> Source:
        deployment = self.deployment
        if deployment.image is not None:  # the Triton, which may be elsewhere, is not looked for
            return find_source(Path(deployment.image).absolute(), self._signer, "--image PATH.sif")
        release = self.resolved.release.release
        if deployment.env == "packed":
            named = DIST / f"tritonserver-{release}.sif"
            remedy = f"apptainer pull {named} docker://{stock_image(deployment.triton)}"
        else:
            flavours = self.resolved.fitting_flavours
            places = [DIST / sif_name(release, flavour) for flavour in flavours]
            named = next((sif for sif in places if sif.is_file()), places[0])
            remedy = f"numlkit build --target sif --flavour {flavours[0]}"
        return find_source(named, self._signer, remedy)

    def require_room(self, extracted: int) -> None:
        """Check the disk: the instance's /tmp is in the deployment's folder."""
        if extracted:
            folder, what = DeploymentFolder(self.deployment.name).path, "packed environments"
            check_room([Room(folder, extracted, f"{what}, extracted", "set XDG_STATE_HOME")])

    @staticmethod
    def command(plan: LaunchPlan) -> Sequence[str]:
        config = f"APPTAINER_CONFIGDIR={config_folder(plan.log.parent)}"
        return ("env", config, *instance_command(plan))

    def lay_out(self, folder: DeploymentFolder) -> None:
        super().lay_out(folder)
        config_folder(folder.path).mkdir(exist_ok=True)
        scratch_folder(folder.path).mkdir(mode=0o700, exist_ok=True)
        self._keep(folder)

    def rooms(self) -> list[Room]:
        rooms = super().rooms()
        with suppress(KitError, OSError):  # reported by the check of the image
            if self.deployment.env == "unpacked":
                folder = DeploymentFolder(self.deployment.name).path
                size = self._source.path.stat().st_size
                rooms.append(Room(folder, size, "the copy of the .sif", "set XDG_STATE_HOME"))
        return rooms

    @classmethod
    def clear(cls, folder: DeploymentFolder, state: DeploymentState) -> None:
        server = cls.server(folder, state)
        if server is not None:
            end_process(server)
        if state.container is not None:
            stop_instance(state.container, folder.path)

    def launch_findings(self) -> Iterator[Finding]:
        """Return warnings of too little shared memory, and of a bad temporary folder.

        ``up`` contains an instance, and Apptainer then gives it shared memory of its own. The
        same .sif started by hand uses the host's, unless it is contained as well.
        """
        yield from super().launch_findings()
        try:
            # Where a .sif cannot be mounted, it is unpacked there.
            check_temporary_folder(_TMPDIR if os.environ.get(_TMPDIR) else "TMPDIR")
        except BuildError as error:
            yield wrong(ROOM, error, "warning")
        free = file_system_of(SHARED_MEMORY).free
        if free < self.shared_bytes:
            detail = (
                f"{SHARED_MEMORY} of this host has {size(free)} free; the model instances need "
                f"{size(self.shared_bytes)}. up gives them their own, but apptainer run without "
                "--containall does not"
            )
            yield Finding("warning", ROOM, detail, MORE_SHARED_MEMORY)

    def findings(self, level: Level) -> Iterator[Finding]:
        if shutil.which("apptainer") is None:
            yield self.absent(level, install_hint())
            return
        try:
            program = find_apptainer()
        except BuildError as error:
            yield wrong(self.subject, error, level)
            return
        setuid = is_setuid(program.path)
        yield ok(self.subject, f"{program}{', setuid' if setuid else ''}")
        if os.geteuid() != 0 and not setuid:
            for detail, remedy in obstacles():
                yield Finding(level, self.subject, detail, remedy)
        yield from self.image_findings(level)

    @classmethod
    def leftovers(cls) -> Iterator[Finding]:
        for folder in sorted(deployments_folder().glob("*")):
            for file in instance_files(folder):
                if has_state(folder) or init_of(file) is None:
                    continue
                detail = f"instance {file.stem} belongs to no deployment and"
                if not serves(file):
                    fix = partial(stop_unused, file, folder)
                    yield Finding("problem", LEFTOVERS, f"{detail} has no server", FIX, fix)
                    continue
                config = shlex.quote(str(config_folder(folder)))
                remedy = (
                    f"APPTAINER_CONFIGDIR={config} apptainer instance stop "
                    f"{shlex.quote(file.stem)}, if nobody uses it"
                )
                yield Finding("problem", LEFTOVERS, f"{detail} runs a server", remedy)
