"""The compiler of the native library: ``$CXX``, else the system's, else PyPI's ``ziglang``.

Run, it prints which one that is; from the same words come the same bytes.
"""

import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys

# For a glibc no newer than Triton's own wheel asks for.
ZIG = [sys.executable, "-m", "ziglang", "c++", "-target", f"{platform.machine()}-linux-gnu.2.28"]


def compiler() -> list[str]:
    """Return the compiler's command."""
    if os.environ.get("CXX"):
        return shlex.split(os.environ["CXX"])
    for name in ("g++", "clang++", "c++"):
        if shutil.which(name):
            return [name]
    if importlib.util.find_spec("ziglang") is not None:
        return ZIG
    raise SystemExit(
        "error: no C++ compiler: scripts/kit-environment gets one (or install g++, or set CXX)"
    )


def identity(command: list[str]) -> str:
    """Return the command with the version of its program."""
    if command == ZIG:
        return f"ziglang {importlib.metadata.version('ziglang')} {' '.join(ZIG[3:])}"
    try:
        said = subprocess.run(
            [command[0], "--version"], capture_output=True, text=True, check=True
        ).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"error: the C++ compiler does not run: {error}") from None
    return f"{shlex.join(command)}: {said.partition(chr(10))[0]}"


if __name__ == "__main__":
    sys.stdout.write(identity(compiler()) + "\n")
