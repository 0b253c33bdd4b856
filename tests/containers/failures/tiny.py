"""An image and a .sif of a few hundred bytes: a program that waits, and nothing else.

What an engine refuses it refuses them, too, in a fraction of the time.
"""

import io
import shutil
import struct
import subprocess
import tarfile
import tempfile
from pathlib import Path

X86_64, AARCH64 = 62, 183  # ELF's numbers of processors
WAIT, SERVER = "/wait", "/tritonserver"  # the same one; a server is known by its name
_LOADED_AT = 0x400000
_HEADERS = 64 + 56
# mov eax, 34 (pause); syscall; jmp back
_WAITS = b"\xb8\x22\x00\x00\x00\x0f\x05\xeb\xf7"
# lea rsi, [rsp+8]; xor edx, edx; lea rdi, [rip+7]; mov eax, 59 (execve); syscall; the path
_EXECUTES = b"\x48\x8d\x74\x24\x08\x31\xd2\x48\x8d\x3d\x07\x00\x00\x00\xb8\x3b\x00\x00\x00\x0f\x05"
_FOLDERS = (".singularity.d", "dev", "etc", "opt", "proc", "sys", "tmp")


def waiting_program(machine: int = X86_64) -> bytes:
    """Return an executable that waits until it is killed."""
    return _executable(_WAITS, machine)


def executing_program(path: str) -> bytes:
    """Return an executable that becomes the one at ``path``."""
    return _executable(_EXECUTES + path.encode() + b"\0", X86_64)


def _executable(code: bytes, machine: int) -> bytes:
    """Return an executable that needs no library.

    Source of the format: ELF-64 Object File Format, version 1.5.
    """
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = (2, machine, 1, _LOADED_AT + _HEADERS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    size = _HEADERS + len(code)
    segment = (1, 5, 0, _LOADED_AT, _LOADED_AT, size, size, 0x1000)
    return (
        identity
        + struct.pack("<HHIQQQIHHHHHH", *header)
        + struct.pack("<IIQQQQQQ", *segment)
        + code
    )


def image_tar(machine: int = X86_64, ballast: int = 0) -> bytes:
    """Return an image's files as a tar.

    Args:
        machine: The processor that its programs are for.
        ballast: Bytes of a further file.
    """
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as tar:
        program = waiting_program(machine)
        for name, content in ((WAIT, program), (SERVER, program), ("/ballast", bytes(ballast))):
            member = tarfile.TarInfo(name[1:])
            member.size, member.mode = len(content), 0o755
            tar.addfile(member, io.BytesIO(content))
        for name in _FOLDERS:
            member = tarfile.TarInfo(name)
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(member)
    return stream.getvalue()


def make_sif(path: Path, *, partarch: int = 2, runs: str | None = WAIT) -> Path:
    """Write a .sif.

    Args:
        path: Where it goes.
        partarch: Apptainer's number of the processor it says to be for: 2 is amd64, 4 arm64.
        runs: The program that its start script becomes, which waits; None: it has no such script.
    """
    with tempfile.TemporaryDirectory() as scratch:
        box, squashed = Path(scratch, "box"), Path(scratch, "squashfs")
        _fill(box, runs)
        for words in (
            ["mksquashfs", box, squashed, "-noappend", "-quiet"],
            ["apptainer", "sif", "new", path],
            ["apptainer", "sif", "add", "--datatype", "4", "--parttype", "2", "--partfs", "1",
             "--partarch", str(partarch), "--groupid", "1", path, squashed],
        ):  # fmt: skip
            subprocess.run(list(map(str, words)), check=True, capture_output=True)
    path.chmod(0o755)
    return path


def _fill(box: Path, runs: str | None) -> None:
    with tarfile.open(fileobj=io.BytesIO(image_tar())) as tar:
        # Debian 12's own Python knows no filters.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        tar.extractall(box)
    if runs is not None:
        if runs not in (WAIT, SERVER):
            shutil.copy(box / WAIT[1:], box / runs[1:])
        script = box / ".singularity.d" / "runscript"
        script.write_bytes(executing_program(runs))
        script.chmod(0o755)
