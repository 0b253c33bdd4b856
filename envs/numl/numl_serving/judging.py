"""Whether the models of a running server are ready and give their golden answers.

It runs on the server's host, in its container: Triton still reports a model as ready when its
processes (stubs) have died, and hides the loss of one by giving requests to another, so they are
counted.
"""

from __future__ import annotations

import http.client
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from numl_formats.golden import difference, read_golden
from numl_formats.inference import AnswerError, NoAnswerError, TritonHttp, infer
from numl_formats.repository import CARD_FILE, CONFIG, GOLDEN_FILE
from numl_formats.watched import State
from numl_serving.errors import ServingError, of_model_files

_STUB, _SERVER = b"/triton_python_backend_stub", b"/tritonserver"
_REPOSITORY = b"--model-repository="


class UnhealthyError(ServingError):
    """A model does not answer, or gives a wrong answer."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found of a model.

    Attributes:
        fault: What is wrong, in one line.
        seconds: How long a right answer took.
    """

    state: State
    fault: str | None = None
    seconds: float | None = None


def check_repository(
    server: TritonHttp,
    repository: Path,
    processes: Path = Path("/proc"),
    *,
    everything: bool = False,
) -> tuple[str, ...]:
    """Check every model of a repository.

    Args:
        server: The server that serves it.
        repository: Its folder; the golden answers in it are expected. A model without a
            ``model.json`` is a site's own, and is only asked whether it is ready.
        processes: Where the system lists processes.
        everything: Compare a site's own models with their golden answers, too.

    Returns:
        The models' names.

    Raises:
        NoAnswerError: A question was not answered in time.
        UnhealthyError: Something is wrong; says what, for every model.
        ModelFilesError: A golden answer cannot be read.
    """
    models = models_of(repository)
    if not models:
        raise NoAnswerError(f"{repository} has no models yet")
    server.ask("GET", "/v2/health/live")
    verdicts = {m: judge(server, repository / m, processes, everything) for m in models}
    faults = [f"{model}: {verdict.fault}" for model, verdict in verdicts.items() if verdict.fault]
    if faults:
        raise UnhealthyError("; ".join(faults))
    return tuple(models)


def models_of(repository: Path) -> list[str]:
    """Return the models that are in a repository now."""
    return sorted(path.parent.name for path in repository.glob(f"*/{CONFIG}"))


def judge(
    server: TritonHttp, folder: Path, processes: Path = Path("/proc"), everything: bool = False
) -> Verdict:
    """Check the model in a folder; raises as `check_repository`."""
    directory = _served(server, folder)
    verdict = _judge(server, directory, processes, everything)
    if verdict.fault is not None and (now := _served(server, folder)) != directory:
        return _judge(server, now, processes, everything)  # another version has taken its place
    return verdict


def _served(server: TritonHttp, folder: Path) -> Path:
    """Return the folder of the version that a model answers with."""
    versions = [path for path in folder.glob("*/") if path.name.isdecimal()]
    if len(versions) > 1:
        # One is about to take the other's place.
        answer = server.ask("GET", f"/v2/models/{folder.name}")
        with suppress(ValueError, KeyError, TypeError):
            loaded = json.loads(answer.body)["versions"]
            versions = [path for path in versions if path.name in loaded] or versions
    return max(versions, key=lambda path: int(path.name), default=folder / "1")


def _judge(server: TritonHttp, directory: Path, processes: Path, everything: bool) -> Verdict:
    verdict = _answer_of(server, directory, everything)
    if verdict.fault is None and (loss := _loss(server, directory, processes)) is not None:
        return Verdict("failing", loss)
    return verdict


def _answer_of(server: TritonHttp, directory: Path, everything: bool) -> Verdict:
    """Ask a model version for its golden answer."""
    model = directory.parent.name
    if server.ask("GET", f"/v2/models/{model}/ready").status != http.client.OK:
        # The list of models, which has the reason, is closed; the server's log has it, too.
        return Verdict("unready", "not ready")
    if not (has_golden(directory) if everything else is_ours(directory)):
        return Verdict("unjudged")
    with of_model_files():
        golden = read_golden(directory / GOLDEN_FILE)
    if golden.is_sequence or golden.is_decoupled:
        return Verdict("unjudged")  # of a site's model, asked over gRPC by the kit
    begun = time.monotonic()
    try:
        outputs = infer(server, model, directory.name, golden.inputs, golden.outputs)
    except NoAnswerError as error:
        raise NoAnswerError(f"{model}: {error}") from None
    except AnswerError as error:
        return Verdict("failing", str(error))
    seconds = time.monotonic() - begun
    fault = difference(golden, outputs)
    if fault is not None:
        return Verdict("wrong", f"wrong answer: {fault}")
    return Verdict("right", seconds=seconds)


def has_golden(directory: Path) -> bool:
    return (directory / GOLDEN_FILE).exists()


def is_ours(directory: Path) -> bool:
    return (directory / CARD_FILE).exists()


def _loss(server: TritonHttp, directory: Path, processes: Path) -> str | None:
    """Return one line saying how many of a model's instances have died, or None."""
    model = directory.parent.name
    answer = server.ask("GET", f"/v2/models/{model}/config")
    try:
        groups = json.loads(answer.body)["instance_group"]
        wanted = sum(group["count"] * max(len(group.get("gpus", ())), 1) for group in groups)
    except (ValueError, KeyError, TypeError):
        return f"its configuration cannot be read: {answer.error}"
    lines = list(_command_lines(processes))
    # Another server on this host may have a model of this name. The repositories of an image, for
    # CPUs and for GPUs, are side by side.
    folders = _repositories(server, lines) or [str(directory.parents[2])]
    begins = tuple(f"{folder.rstrip('/')}/".encode() for folder in folders)
    end = f"/{model}/{directory.name}/model.py".encode()
    alive = sum(
        words[0].endswith(_STUB) and words[1].startswith(begins) and words[1].endswith(end)
        for words in lines
    )
    # None at all: they are not to be seen from here, for one of them has just answered.
    return f"{wanted - alive} of its {wanted} processes are gone" if 0 < alive < wanted else None


def _repositories(server: TritonHttp, lines: Iterable[list[bytes]]) -> list[str]:
    """Return what a server says on its command line that it serves, if that is to be seen.

    An image that runs with other limits than its own serves a copy of its repository.
    """
    port = f"--http-port={server.port}".encode()
    return [
        os.fsdecode(word.removeprefix(_REPOSITORY))
        for words in lines
        if words[0].endswith(_SERVER) and port in words
        for word in words
        if word.startswith(_REPOSITORY)
    ]


def _command_lines(processes: Path) -> Iterable[list[bytes]]:
    for file in processes.glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # it has exited
            continue
        if len(words) > 1:
            yield words
