"""Find the kit's own Python before anything else is imported.

Standard library only, in a syntax that old Pythons can read: this module runs
under whatever ``python`` the person typed.
"""

import importlib.util
import os
import signal
import site
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from deploy.environment.install import Environment
    from deploy.environment.lock import Flavour

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120
KIT_PYTHON = os.path.join(ROOT, ".venv", "bin", "python")  # noqa: PTH118
NEEDED = (
    "conda_pack",
    "docker",
    "google.protobuf",
    "h5py",
    "matplotlib",
    "psutil",
    "pydantic",
    "rattler",
    "rich",
    "spython",
    "tritonclient",
)
_MARK = "NUMLKIT_BOOTSTRAPPED"


def _missing() -> "str | None":
    """Return the name of the first dependency that this Python lacks, or None."""
    for name in NEEDED:
        try:
            if importlib.util.find_spec(name) is None:
                return name
        except ImportError:
            return name
    return None


def ensure_execution_environment() -> None:
    """Continue in the Python of the full execution environment, which is made if need be.

    For scripts that need torch or NuGraph's own stack.

    Raises:
        SystemExit: With status 2 and one line on standard error.
    """
    # Its own mark: another Python that has torch may lack everything else.
    mark = os.path.join(sys.prefix, "numlkit-environment.json")  # noqa: PTH118
    if os.path.exists(mark) and importlib.util.find_spec("torch") is not None:  # noqa: PTH110
        return
    ensure_kit()
    python = str(_environment("cpu").python)
    os.execv(python, [python, *sys.argv])


def ensure_serving() -> None:
    """Continue in a Python that has the kit's dependencies, and can import ``numl_serving``.

    The environment for serving is made if need be. What both have is the kit's.

    Raises:
        SystemExit: With status 2 and one line on standard error.
    """
    ensure_kit()
    site.addsitedir(str(_environment("serving").site_packages))


def _environment(flavour: "Flavour") -> "Environment":
    """Return an execution environment, which is made if need be."""
    from deploy.cli import INTERRUPTED, describe_os_error, interrupted
    from deploy.console import Console
    from deploy.environment.standard import standard_environment
    from deploy.errors import KitError

    console = Console()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        standard = standard_environment(flavour)
        if standard.is_made:
            return standard.environment
        with console.step("prepare") as say:
            return standard.ensure(say)
    except KitError as error:
        console.error(error)
        raise SystemExit(2) from None
    except OSError as error:
        console.error(describe_os_error(error))
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        console.error(interrupted())
        raise SystemExit(INTERRUPTED) from None


def ensure_kit() -> None:
    """Continue in a Python that has the kit's dependencies, or say how to get one.

    A script's own folder comes first on Python's path; it is replaced by the
    checkout, so that ``import deploy`` works and nothing in the folder hides a
    library. If this Python lacks a dependency and the checkout has the virtual
    environment that ``scripts/kit-environment`` makes, the same command is run there.

    Raises:
        SystemExit: With status 2 and one line on standard error.
    """
    sys.path[0] = ROOT
    # Until the command itself handles an interrupt, it ends the process without a word.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    problem = None
    if sys.version_info < (3, 11):  # noqa: UP036
        problem = "numlkit needs Python 3.11 or later; this is %d.%d" % sys.version_info[:2]  # noqa: UP031
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
    sys.stderr.write("error: %s: run scripts/kit-environment, which sets them up\n" % problem)  # noqa: UP031
    raise SystemExit(2)
