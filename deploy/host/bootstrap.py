"""Find the kit's own Python before anything else is imported.

Standard library only, in a syntax that old Pythons can read: this module runs
under whatever ``python`` the person typed.
"""

import importlib.util
import os
import signal
import sys

ROOT = os.path.abspath(__file__).rsplit(os.sep, 3)[0]  # noqa: PTH100
KIT_PYTHON = os.path.join(ROOT, ".venv", "bin", "python")  # noqa: PTH118
NEEDED = (
    "argcomplete", "conda_pack", "cryptography", "docker", "google.protobuf", "grpc_health", "h5py",
    "matplotlib", "psutil", "pydantic", "rattler", "rich", "spython", "tritonclient", "zlib_ng",
)  # fmt: skip
_MARK = "NUMLKIT_BOOTSTRAPPED"


def _missing() -> "str | None":
    """Return the first dependency that this Python lacks."""
    for name in NEEDED:
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ImportError:
            return name
    return None


def ensure_kit() -> None:
    """Continue in a Python that has the kit's dependencies, or say how to get one.

    On Python's path, the checkout replaces the command's own folder, so that nothing in that folder
    hides a library. If a dependency is missing, the same command is run in the environment that
    ``scripts/kit-environment`` makes, if it exists.
    """
    sys.path[0] = ROOT
    # Until the command itself handles interrupts, one ends the process silently.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    problem = None
    if sys.version_info < (3, 10):  # noqa: UP036
        problem = "numlkit needs Python 3.10 or later; this is %d.%d" % sys.version_info[:2]  # noqa: UP031
    else:
        missing = _missing()
        if missing is not None:
            problem = "numlkit's dependencies are not installed in %s (no %s)" % (  # noqa: UP031
                sys.executable,
                missing,
            )
    if problem is None:
        return
    # The scripts directory says where they are put; the mark stops a loop.
    complete = os.path.exists(os.path.join(ROOT, ".venv", ".numlkit-complete"))  # noqa: PTH110, PTH118
    if complete and os.environ.get(_MARK) != KIT_PYTHON:
        os.environ[_MARK] = KIT_PYTHON
        try:
            os.execv(KIT_PYTHON, [KIT_PYTHON, *sys.argv])
        except OSError:
            problem = "the kit's environment in .venv is broken"
    sys.stderr.write("error: %s\n  try: scripts/kit-environment\n" % problem)  # noqa: UP031
    raise SystemExit(2)
