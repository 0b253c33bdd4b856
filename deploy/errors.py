"""The kit's exception tree: a cause in one line, a remedy in the next."""

from __future__ import annotations


class KitError(Exception):
    """Something the person at the keyboard can mend.

    Attributes:
        cause: One line that says what is wrong and where.
        remedy: One line that says what to do, a command where there is one.
    """

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        super().__init__(cause)
        self.cause = cause
        self.remedy = remedy


class DeploymentError(KitError):
    """A deployment file, a flag or a name is not usable."""


class RepositoryError(KitError):
    """A model repository or one of its files is not usable."""


class EnvironmentSetupError(KitError):
    """The execution environment cannot be made or does not pass its checks."""


class TritonSetupError(KitError):
    """No usable Triton could be found or unpacked."""


class GpuError(KitError):
    """The GPUs that were asked for are not there or cannot be used."""


class LaunchError(KitError):
    """A server did not become ready."""


class NotRunningError(KitError):
    """The named deployment is not there."""


class BuildError(KitError):
    """An artefact cannot be built, or not here."""
