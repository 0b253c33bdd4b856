"""Where environments are specified: ``envs/NAME``, with ``requirements.in`` and ``locks/``."""

from pathlib import Path

from deploy.environment.lock import Flavour, locked_pythons
from deploy.host.errors import EnvironmentSetupError
from deploy.host.paths import CHECKOUT

ENVIRONMENTS = "envs"
LOCKS = "locks"
REQUIREMENTS, DATA = "requirements.in", "data.in"


def find_source(name: str, repository: Path) -> Path:
    """Return the folder of an environment: beside a model repository, else among the kit's.

    Raises:
        EnvironmentSetupError: It is not there, or has no lock.
    """
    beside = repository.resolve().parent / ENVIRONMENTS / name
    for folder in (beside, CHECKOUT / ENVIRONMENTS / name):
        if any(locked_pythons(folder / LOCKS, flavour) for flavour in ("cpu", "gpu")):
            return folder
    if (beside / REQUIREMENTS).is_file():
        raise EnvironmentSetupError(f"{beside} has no lock", f"numlkit lock {beside}")
    known = ", ".join(
        sorted(p.parent.parent.name for p in (CHECKOUT / ENVIRONMENTS).glob(f"*/{LOCKS}/cpu.txt"))
    )
    cause = f"no environment {name!r}: neither {beside} nor one of the kit's"
    raise EnvironmentSetupError(cause, f"write {beside / REQUIREMENTS}, or name one of: {known}")


def source_named(word: str) -> Path:
    """Return the folder that a person names: one of the kit's environments, or a path."""
    path = Path(word)
    kits = CHECKOUT / ENVIRONMENTS / word
    return (kits if path.name == word and not path.is_dir() and kits.is_dir() else path).absolute()


def is_of_kit(source: Path) -> bool:
    """Return whether an environment is one of the kit's, and not a site's."""
    return source.resolve().parent == (CHECKOUT / ENVIRONMENTS).resolve()


def locked_flavour(source: Path, wanted: Flavour) -> Flavour:
    """Return ``gpu`` if that is wanted and locked, for whichever Python, else ``cpu``."""
    return "gpu" if wanted == "gpu" and locked_pythons(source / LOCKS, "gpu") else "cpu"
