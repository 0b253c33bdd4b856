"""The environment for tests that need a certain Python and numpy, whatever the host has."""

from deploy.environment.environment import Environment, plan_environment
from deploy.environment.private_python import ensure_private_python


def ignore(_text: str) -> None:
    pass


def numpy_1() -> Environment:
    """Plan the serving environment of Python 3.11, with numpy 1.

    The kit's own models are also served with Python 3.13 and numpy 2, where the host has these.
    """
    python = plan_environment("cpu").interpreter
    ensure_private_python(python, ignore)
    return plan_environment("serving", python=python.executable)
