"""Continue in the kit's own Python before anything else is imported.

Standard library only, in a syntax that old Pythons can read: this module runs under whatever
``python`` the person typed.
"""

import os
import signal
import sys

ROOT = os.path.abspath(__file__).rsplit(os.sep, 3)[0]  # noqa: PTH100
KIT = os.path.join(ROOT, ".venv")  # noqa: PTH118
_MARK = "NUMLKIT_BOOTSTRAPPED"


def ensure_kit() -> None:
    """Continue in the environment that ``scripts/kit-environment`` makes, or say how to make it.

    A Python in which numlkit is installed is good, too. On Python's path, the checkout replaces
    the command's own folder, so that nothing in that folder hides a library.
    """
    sys.path[0] = ROOT
    # Until the command itself handles interrupts, one ends the process silently.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    python = os.path.join(KIT, "bin", "python")  # noqa: PTH118
    # The mark stops a loop.
    if os.environ.pop(_MARK, "") == python or os.path.realpath(sys.prefix) == os.path.realpath(KIT):
        return
    problem = "the kit's Python environment is missing"
    if os.path.exists(os.path.join(KIT, ".numlkit-complete")):  # noqa: PTH110, PTH118
        try:
            # -E: libraries that PYTHONPATH names are another Python's.
            words = [python, "-E"] + sys.argv  # noqa: RUF005
            os.execve(python, words, dict(os.environ, **{_MARK: python}))
        except OSError:
            problem = "the kit's environment in .venv is broken"
    elif _is_installed():
        return
    sys.stderr.write("error: %s\n  try: scripts/kit-environment\n" % problem)  # noqa: UP031
    raise SystemExit(2)


def _is_installed() -> bool:
    try:
        from importlib.metadata import distribution

        distribution("numlkit")
    except ImportError:
        return False
    return True
