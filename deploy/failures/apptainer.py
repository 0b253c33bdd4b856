"""What Apptainer says when it does not start an instance.

The patterns were seen with Apptainer 1.4.5, or are those of the sources named beside them.
"""

from __future__ import annotations

import re

from deploy.failures.row import Failure, row

_SETUID = "or install apptainer-suid"
_AGAIN = (
    "compare its sha256 with the one in dist/manifest.json, and copy or build it again "
    "(python3 deploy/build.py --target sif)"
)
_NAMESPACES = (
    "sudo sysctl -w user.max_user_namespaces=15000 (Ubuntu from 23.10 on: also "
    f"kernel.apparmor_restrict_unprivileged_userns=0), {_SETUID}"
)

APPTAINER: tuple[Failure, ...] = (
    row(
        r"open image (?P<path>[^\n]+?): image format not recognized",
        "{path} is no .sif: empty, or another file",
        "python3 deploy/build.py --target sif, or --image PATH.sif",
    ),
    row(
        r"open image (?P<path>[^\n]+?): failed to retrieve path",
        "{path}: no such file",
        "python3 deploy/build.py --target sif, or --image PATH.sif",
    ),
    row(
        r"image's architecture \((?P<image>\w+)\) could not run on the host's \((?P<host>\w+)\)",
        "the .sif is for {image} processors, this host's is {host}",
        "build it on a host of this kind: python3 deploy/build.py --target sif",
    ),
    row(
        r"bad superblock for squashfs image partition|failed to read SIF partition at offset"
        r"|read (?P<path>/\.singularity\.d/\S+): input/output error",
        "the .sif is damaged or cut off",
        _AGAIN,
    ),
    row(
        r"failed to find loop device: (?P<reason>[^\n]+)",
        "Apptainer gets no loop device to mount the .sif with: {reason}",
        "sudo modprobe loop, or free some (losetup --list)",
    ),
    row(
        r"exec /\.singularity\.d/runscript failed|No runscript and no /bin/sh",
        "the .sif has no start script that runs: it is none of the kit's",
        "--image with one that deploy/build.py has made",
    ),
    row(
        r"squashfuse\w* exited: fuse: failed to open /dev/fuse: Permission denied",
        "this user may not open /dev/fuse, by which Apptainer mounts a .sif",
        f"sudo chmod 666 /dev/fuse (its usual mode), {_SETUID}",
    ),
    row(
        # libfuse; the latter if the device is another one.
        r"squashfuse\w* exited: fuse: (?:device not found|failed to open|mount failed)[^\n]*",
        "no usable /dev/fuse here, by which Apptainer mounts an ordinary user's .sif",
        f"sudo modprobe fuse, {_SETUID}",
    ),
    row(
        r"instance (?P<name>\S+) already exists",
        "there is an instance named {name} already",
        "apptainer instance stop {name} if it is nobody's; it is this host's own if "
        "python3 deploy/doctor.py says so",
    ),
    row(
        # apptainer: cmd/starter/c/starter.c
        r"Failed to create (?:user|mount|container) (?:namespace|process): (?P<reason>[^\n]+)",
        "this host gives ordinary users no namespaces, in which Apptainer runs a .sif: {reason}",
        _NAMESPACES,
    ),
    row(
        r"cannot use cgroups - (?P<reason>[^\n]+)",
        "Apptainer cannot limit CPUs or memory here: {reason}",
        "run it in a session of systemd with cgroup v2, or in a job of the batch system, which "
        "keeps its own limits",
    ),
    row(
        r"Could not find any nv files on this host",
        "Apptainer found no libraries of NVIDIA's driver on this host (--nv)",
        "install NVIDIA's driver until nvidia-smi works, or start with --cpu",
    ),
    row(
        r"mount source (?P<path>\S+) doesn't exist",
        "{path} is to be seen in the container and is not there",
        "repeat the command, which stages it anew",
    ),
    row(
        r"root filesystem extraction failed[\s\S]*No space left on device",
        "the folder for temporary files is too small to unpack the .sif into",
        "free space there, or set APPTAINER_TMPDIR to a larger folder",
    ),
)

_COMPLAINT = re.compile(
    r"(?:FATAL|ERROR)\s*:\s++(?!while executing starter|container cleanup failed)(?P<reason>[^\n]+)"
)


def complaint(said: str) -> str:
    """Return what Apptainer says went wrong; it ends with a line that only says that it did."""
    found = _COMPLAINT.search(said)
    lines = [line for line in said.splitlines() if line.strip()]
    return found["reason"] if found is not None else lines[-1] if lines else "it says nothing"
