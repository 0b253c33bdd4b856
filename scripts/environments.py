"""The environments of scripts that import ``numl_serving``."""

from __future__ import annotations

import os
import signal
import site
import sys

from deploy.environment.environment import Environment, plan_environment
from deploy.environment.lock import Flavour
from deploy.host.cli import INTERRUPTED, describe_os_error, interrupted
from deploy.host.console import Console
from deploy.host.errors import KitError


def continue_in_full() -> None:
    """Re-run this script in the full environment, which has torch and NuGraph's own stack."""
    python = str(_environment("cpu").python)
    os.execv(python, [python, *sys.argv])


def add_serving() -> None:
    """Let this Python import ``numl_serving``, from the environment for serving.

    Packages that both have are taken from this Python.
    """
    site.addsitedir(str(_environment("serving").site_packages))


def _environment(flavour: Flavour) -> Environment:
    console = Console()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        environment = plan_environment(flavour)
        if environment.is_made:
            return environment
        with console.step("prepare") as say:
            return environment.make(say)
    except (KitError, OSError) as error:
        console.error(describe_os_error(error) if isinstance(error, OSError) else error)
        raise SystemExit(2) from None
    except KeyboardInterrupt:
        console.error(interrupted())
        raise SystemExit(INTERRUPTED) from None
