"""The kit's exceptions: a cause in one line, a remedy in the next."""

_SHOWN = 2000  # characters; what was given may have megabytes


class KitError(Exception):
    """Something that the user can fix."""

    def __init__(self, cause: str, remedy: str | None = None) -> None:
        self.cause = _shortened(cause)
        self.remedy = None if remedy is None else _shortened(remedy)
        super().__init__(self.cause)


class DeploymentError(KitError):
    """A deployment file, a flag or a name is invalid."""


class RepositoryError(KitError):
    """A model repository or one of its files is not usable."""


class ModelError(KitError):
    """One model cannot be served; others may be."""

    def __init__(self, model: str, cause: str, remedy: str | None = None) -> None:
        self.model = model
        named = cause.startswith((f"model {model} ", f"model {model}:"))
        super().__init__(cause if named else f"model {model}: {cause}", remedy)


class EnvironmentSetupError(KitError):
    """Triton or the execution environment cannot be set up, or does not pass its checks."""


class GpuError(KitError):
    """The requested GPUs are missing or unusable."""


class LaunchError(KitError):
    """A server did not become ready."""


class NotRunningError(KitError):
    """There is no such deployment."""


class BuildError(KitError):
    """An artefact cannot be built, or not on this host."""


class PublishError(KitError):
    """Something cannot be published, or a destination cannot be read."""


class DamagedError(PublishError):
    """What is published at a destination is not what the kit wrote there."""


class DeniedError(PublishError):
    """A registry refuses this user, who may be locked out if asked again with a wrong password."""


class SignatureError(KitError):
    """A signature is missing, or does not match."""


class UncheckedError(KitError):
    """Whether a signature is there and matches could not be found out."""


class ClientError(KitError):
    """A server cannot be used: it does not answer, lacks the model, or is not Triton."""


class NoTritonError(ClientError):
    """Something other than Triton answers."""


class RequestError(KitError):
    """The server refused one event, or did not answer it."""


class NoAnswerError(RequestError):
    """The server did not answer in time; it may, another time."""


class ServerAwayError(KitError):
    """The connection is lost, or the model is not being served: worth another try."""


def _shortened(text: str) -> str:
    """Return a text without its middle if it is too long to be read."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[: _SHOWN // 2]} [...] {text[-_SHOWN // 2 :]}"


class Ended(KeyboardInterrupt):
    """The command is to end as after Ctrl-C; ``number`` is the signal's that says so."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number
