"""Check that every model of a running server is ready and gives its golden answer.

``python -m numl_serving.health [--host HOST] [--port PORT] [--wait SECONDS] REPOSITORY`` prints
one line and exits with 1 if anything is wrong. It runs on the server's host, in its container:
Triton still reports a model as ready when its processes (stubs) have died, and hides the loss of
one by giving requests to another, so they are counted.

Source of the protocol: KServe's predict protocol, version 2, with Triton's extensions for binary
tensors, the model's configuration and the index of the repository. Needs numpy and the standard
library only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from numl_formats.golden import difference, read_golden
from numl_formats.repository import CARD_FILE, GOLDEN_FILE
from numl_serving.errors import ServingError, of_model_files

ROUND_S = 8.0
"""Time limit (s) for checking all models once."""

_PAUSE_S = 0.2
_BUSY = ("Exceeds maximum queue size", "Request timeout expired")
"""What a server says that refuses a request since too many wait."""
_PAUSE_S = 0.2
_HEADER_LENGTH = "Inference-Header-Content-Length"
_STUB = b"/triton_python_backend_stub"
_TYPES = {"FP32": np.dtype(np.float32), "INT32": np.dtype(np.int32)}
_TYPE_NAMES = {dtype: name for name, dtype in _TYPES.items()}


State: TypeAlias = Literal["right", "wrong", "failing", "unready", "unjudged", "unreachable"]
"""What a check finds; docs/monitoring.md says what each means."""


class UnhealthyError(ServingError):
    """The server or a model does not answer, or gives a wrong answer."""


class NoAnswerError(UnhealthyError):
    """No answer yet: a starting server stays silent until its models are loaded.

    One whose repository is filled by another program has no models at first.
    """


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def error(self) -> str:
        """The server's error message, as one line."""
        try:
            text = str(json.loads(self.body)["error"])
        except (ValueError, KeyError, TypeError):
            text = f"status {self.status}"
        return text.splitlines()[0] if text else f"status {self.status}"


@dataclass(frozen=True, slots=True)
class Server:
    """A Triton's HTTP endpoint, to be asked until a deadline on the monotonic clock."""

    host: str
    port: int
    deadline: float

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> Answer:
        """Ask one question, on a new connection: an open one delays a server's stop.

        Raises:
            NoAnswerError: There is no answer in time.
        """
        left = max(self.deadline - time.monotonic(), 0.01)
        connection = http.client.HTTPConnection(self.host, self.port, timeout=left)
        try:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException) as error:
            reason = str(error) or type(error).__name__
            raise NoAnswerError(f"no answer from {self.host} port {self.port}: {reason}") from None
        finally:
            connection.close()


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
    server: Server, repository: Path, processes: Path = Path("/proc")
) -> tuple[str, ...]:
    """Check every model of a repository.

    Args:
        server: The server that serves it.
        repository: Its folder; the golden answers in it are expected. A model without a
            ``model.json`` is a site's own, and is only asked whether it is ready.
        processes: Where the system lists processes.

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
    verdicts = {model: judge(server, repository / model, processes) for model in models}
    faults = [f"{model}: {verdict.fault}" for model, verdict in verdicts.items() if verdict.fault]
    if faults:
        raise UnhealthyError("; ".join(faults))
    return tuple(models)


def models_of(repository: Path) -> list[str]:
    """Return the models that are in a repository now."""
    return sorted(path.parent.name for path in repository.glob("*/config.pbtxt"))


def judge(server: Server, folder: Path, processes: Path = Path("/proc")) -> Verdict:
    """Check the model in a folder; raises as `check_repository`."""
    directory = _served(server, folder)
    verdict = _judge(server, directory, processes)
    if verdict.fault is not None and (now := _served(server, folder)) != directory:
        return _judge(server, now, processes)  # another version has taken its place
    return verdict


def infer(
    server: Server,
    model: str,
    version: str,
    inputs: Mapping[str, NDArray[Any]],
    outputs: Iterable[str],
) -> dict[str, NDArray[Any]]:
    """Return the outputs of one inference.

    Raises:
        NoAnswerError: There is no answer in time.
        UnhealthyError: The answer is an error, or not of the protocol. A server that is too busy is
            asked again.
    """
    data = [np.ascontiguousarray(array).tobytes() for array in inputs.values()]
    question = json.dumps(
        {
            "inputs": [
                {
                    "name": name,
                    "shape": array.shape,
                    "datatype": _TYPE_NAMES[array.dtype],
                    "parameters": {"binary_data_size": array.nbytes},
                }
                for name, array in inputs.items()
            ],
            "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in outputs],
        }
    ).encode()
    path, body = f"/v2/models/{model}/versions/{version}/infer", b"".join([question, *data])
    answer = server.ask("POST", path, body, {_HEADER_LENGTH: str(len(question))})
    while _is_busy(answer) and time.monotonic() + _PAUSE_S < server.deadline:
        time.sleep(_PAUSE_S)
        answer = server.ask("POST", path, body, {_HEADER_LENGTH: str(len(question))})
    if answer.status != http.client.OK:
        raise UnhealthyError(answer.error)
    try:
        return dict(_tensors(answer))
    except (ValueError, KeyError, TypeError) as error:
        raise UnhealthyError(f"the answer cannot be read: {error}") from None


def _is_busy(answer: Answer) -> bool:
    return answer.status != http.client.OK and answer.error in _BUSY


def _tensors(answer: Answer) -> Iterable[tuple[str, NDArray[Any]]]:
    length = int(answer.headers[_HEADER_LENGTH])
    place = length
    for output in json.loads(answer.body[:length])["outputs"]:
        size = output["parameters"]["binary_data_size"]
        values = np.frombuffer(answer.body[place : place + size], _TYPES[output["datatype"]])
        # With numpy 2 a stub of Triton 24.10 sends the right shape and no values.
        yield output["name"], values.reshape(output["shape"])
        place += size


def _served(server: Server, folder: Path) -> Path:
    """Return the folder of the version that a model answers with."""
    versions = [path for path in folder.glob("*/") if path.name.isdecimal()]
    if len(versions) > 1:
        # One is about to take the other's place.
        answer = server.ask("GET", f"/v2/models/{folder.name}")
        with suppress(ValueError, KeyError, TypeError):
            loaded = json.loads(answer.body)["versions"]
            versions = [path for path in versions if path.name in loaded] or versions
    return max(versions, key=lambda path: int(path.name), default=folder / "1")


def _judge(server: Server, directory: Path, processes: Path) -> Verdict:
    verdict = _answer_of(server, directory)
    if verdict.fault is None and (loss := _loss(server, directory, processes)) is not None:
        return Verdict("failing", loss)
    return verdict


def _answer_of(server: Server, directory: Path) -> Verdict:
    """Ask a model version for its golden answer."""
    model = directory.parent.name
    if server.ask("GET", f"/v2/models/{model}/ready").status != http.client.OK:
        # The list of models, which has the reason, is closed; the server's log has it, too.
        return Verdict("unready", "not ready")
    if not _is_ours(directory):
        return Verdict("unjudged")
    with of_model_files():
        golden = read_golden(directory / GOLDEN_FILE)
    begun = time.monotonic()
    try:
        outputs = infer(server, model, directory.name, golden.inputs, golden.outputs)
    except NoAnswerError as error:
        raise NoAnswerError(f"{model}: {error}") from None
    except UnhealthyError as error:
        return Verdict("failing", str(error))
    seconds = time.monotonic() - begun
    fault = difference(golden, outputs)
    if fault is not None:
        return Verdict("wrong", f"wrong answer: {fault}")
    return Verdict("right", seconds=seconds)


def _is_ours(directory: Path) -> bool:
    return (directory / CARD_FILE).exists()


def _loss(server: Server, directory: Path, processes: Path) -> str | None:
    """Return one line saying how many of a model's instances have died, or None."""
    model = directory.parent.name
    # Another server on this host may have a model of this name. The repositories of an image,
    # for CPUs and for GPUs, are side by side.
    begin, end = f"{directory.parents[2]}/".encode(), f"/{model}/{directory.name}/model.py".encode()
    answer = server.ask("GET", f"/v2/models/{model}/config")
    try:
        groups = json.loads(answer.body)["instance_group"]
        wanted = sum(group["count"] * max(len(group.get("gpus", ())), 1) for group in groups)
    except (ValueError, KeyError, TypeError):
        return f"its configuration cannot be read: {answer.error}"
    alive = sum(
        words[0].endswith(_STUB) and words[1].startswith(begin) and words[1].endswith(end)
        for words in _command_lines(processes)
    )
    # None at all: they are not to be seen from here, for one of them has just answered.
    return f"{wanted - alive} of its {wanted} processes are gone" if 0 < alive < wanted else None


def _command_lines(processes: Path) -> Iterable[list[bytes]]:
    for file in processes.glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().split(b"\0")
        except OSError:  # it has exited
            continue
        if len(words) > 1:
            yield words


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m numl_serving.health", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000, help="HTTP port")
    parser.add_argument(
        "--wait", type=float, default=0, metavar="SECONDS", help="seconds to wait for an answer"
    )
    parser.add_argument(
        "--watch", type=float, metavar="SECONDS", help="check repeatedly until stopped"
    )
    parser.add_argument(
        "--metrics", type=int, metavar="PORT",
        help="port where --watch exports its results to Prometheus, at the address in NUML_LISTEN",
    )  # fmt: skip
    parser.add_argument("repository", type=Path, metavar="REPOSITORY")
    options = parser.parse_args(arguments)
    if (options.watch is None) != (options.metrics is None):
        parser.error("--watch and --metrics need each other: use both or neither")
    if options.watch is not None:
        from numl_serving.watch import run  # which needs what is above

        return run(
            options.host, options.port, options.repository, every=options.watch,
            listen=os.environ.get("NUML_LISTEN", "127.0.0.1"), metrics_port=options.metrics,
        )  # fmt: skip
    until = time.monotonic() + options.wait
    while True:
        server = Server(options.host, options.port, deadline=time.monotonic() + ROUND_S)
        try:
            models = check_repository(server, options.repository)
        except ServingError as error:
            if not isinstance(error, NoAnswerError) or time.monotonic() > until:
                sys.stdout.write(f"unhealthy: {error}\n")
                return 1
            time.sleep(_PAUSE_S)
        else:
            ours = [m for m in models if any(map(_is_ours, options.repository.glob(f"{m}/*/")))]
            said = [f"{', '.join(ours)} gave their golden answers"] if ours else []
            said += [f"{model} is ready" for model in models if model not in ours]
            sys.stdout.write(f"healthy: {'; '.join(said)}\n")
            return 0


if __name__ == "__main__":
    raise SystemExit(main())
