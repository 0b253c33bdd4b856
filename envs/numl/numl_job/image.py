"""The server of an image beside a command: ``exec`` in the image, or with ``--image`` outside."""

from __future__ import annotations

import argparse
import http.client
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from numl_job.command import FAILED, Remains, Signals, refused
from numl_job.options import Job, JobError, add_job_options, split_words

_BIN = "/opt/numl/bin"
_HOST = "127.0.0.1"
_ATTEMPTS = 3
_TAKEN = "already in use"  # Triton's word for a port that another program took meanwhile
_STUB = b"triton_python_b"  # as much of its name as the system keeps
_DRIVER = Path("/dev/nvidiactl")  # there with NVIDIA's driver
_DEAD_S = 3.0
_STOP_S = 15.0


class StartError(Exception):
    """The server cannot be used; says why in one line."""


class StoppedError(Exception):
    """A signal came before the command was started."""

    def __init__(self, number: int) -> None:
        super().__init__(f"stopped by {signal.Signals(number).name} before the command was started")
        self.number = number


class Server:
    """A Triton at ports of its own, in a session of its own.

    Args:
        remains: Ends it, too, if this process is killed.
        within: The words before a program of the image.
        flags: Those of ``serve``.
    """

    def __init__(
        self,
        signals: Signals,
        remains: Remains,
        within: Sequence[str],
        flags: Sequence[str],
        log: Path,
    ) -> None:
        self._signals, self._remains, self._within, self._log = signals, remains, within, log
        self._identity = f"numl-job-{os.getpid()}-{secrets.token_hex(4)}"
        self._words = [*within, f"{_BIN}/serve", *flags, f"--id={self._identity}"]
        self._ports = [0, 0, 0]
        self._process: subprocess.Popen[str] | None = None
        self._due, self._pause = 0.0, 1.0
        self._is_ending = False
        self._memory: set[Path] = set()
        self._dead_since: dict[Path, float] = {}

    @property
    def http(self) -> str:
        return f"http://{_HOST}:{self._ports[0]}"

    @property
    def grpc(self) -> str:
        return f"grpc://{_HOST}:{self._ports[1]}"

    def start(self, seconds: float) -> None:
        """Start it, and wait until every model has given its reference output."""
        deadline = time.monotonic() + seconds
        try:
            self._log.write_text("")
        except OSError as error:
            raise StartError(f"--log {self._log}: {error.strerror}") from None
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._ports = _free_ports()
                self._launch()
                fault = self._await(deadline)
            except OSError as error:
                raise StartError(_cause(error)) from None
            if fault is None:
                return
            self.stop()
            if _TAKEN not in self._said() or attempt == _ATTEMPTS:
                raise StartError(f"the server is not usable: {fault}")

    def watch(self) -> None:
        """Start it again if it has died; a model process that died has it stopped for that."""
        assert self._process is not None
        if self._process.poll() is None:
            if not self._is_ending and self._process_died():
                _say("a model process has died: restarting the server")
                self._process.terminate()
                self._is_ending = True
        elif time.monotonic() > self._due:
            _say("the server died: starting it again")
            self.stop()
            self._due, self._pause = time.monotonic() + self._pause, min(2 * self._pause, 60.0)
            try:
                self._launch()
            except OSError as error:  # a full disk or process table, which does not end the command
                _say(f"it cannot be started: {_cause(error)}")

    def stop(self) -> None:
        """End it and all that it started."""
        process = self._process
        if process is None:
            return
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self._remains.server_ended()

    def _launch(self) -> None:
        self._is_ending, self._memory, self._dead_since = False, set(), {}
        with self._log.open("a") as log:
            self._process = self._signals.child(
                self._words,
                at_end=signal.SIGTERM,
                leads=self._remains.add_server,
                env={**os.environ, **self._variables()},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def _variables(self) -> dict[str, str]:
        http, grpc, metrics = map(str, self._ports)
        listen = ("NUML_LISTEN", "NUML_LISTEN_HTTP", "NUML_LISTEN_METRICS")
        ports = {"NUML_HTTP_PORT": http, "NUML_GRPC_PORT": grpc, "NUML_METRICS_PORT": metrics}
        variables = {**dict.fromkeys(listen, _HOST), **ports}
        # By these names they also reach an image that is given no others (APPTAINER_CLEANENV).
        named = {f"APPTAINERENV_{name}": value for name, value in variables.items()}
        return {**variables, **named}

    def _await(self, deadline: float) -> str | None:
        """Wait until every model is right; return what is wrong, or None."""
        assert self._process is not None
        left = max(deadline - time.monotonic(), 1.0)
        check = self._signals.child(
            [*self._within, f"{_BIN}/health", "--wait", f"{left:.0f}"],
            leads=self._remains.add_command,
            env={**os.environ, **self._variables()},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            while check.poll() is None:
                if self._process.poll() is not None:
                    return f"it exited with status {self._process.returncode}{self._why()}"
                if time.monotonic() > deadline:
                    return f"not ready in time (--timeout){self._why()}"
                if (came := self._signals.wait(0.05)) is not None:
                    raise StoppedError(came.number)
            said = check.communicate()[0].strip()
        finally:
            if check.poll() is None:
                os.killpg(check.pid, signal.SIGKILL)
            check.wait()
            self._remains.command_ended()
        if check.returncode != 0:
            last = said.splitlines()[-1] if said else f"{_BIN}/health failed"
            return f"{last}{self._why()}"
        return None if self._is_ours() else "another server answers at its port"

    def _is_ours(self) -> bool:
        connection = http.client.HTTPConnection(_HOST, self._ports[0], timeout=5)
        try:
            connection.request("GET", "/v2")
            said = json.loads(connection.getresponse().read())
            return bool(said.get("name") == self._identity)
        except (OSError, ValueError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def _said(self) -> str:
        return self._log.read_text(errors="replace")

    def _why(self) -> str:
        """Return the line of the log that says why, with words before it."""
        assert self._process is not None
        lines = [line.strip() for line in self._said().splitlines() if line.strip()]
        failed = [line for line in lines if "failed to load" in line or _TAKEN in line]
        if self._process.poll() is not None:
            failed += lines[-1:]
        line = failed[0] if failed else ""
        return f"; its log: {line[:300]}" if line else ""

    def _process_died(self) -> bool:
        """Return whether a stub has been dead for so long that nothing will replace it.

        It leaves its shared memory, which Triton removes with the model. Whether it also stays as
        a zombie depends on the Triton: from 25.12 on its readiness reaps it.
        """
        assert self._process is not None
        used: set[Path] = set()
        for file in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                _, _, rest = file.read_bytes().partition(b" (")  # a name may be any bytes
                name, _, fields = rest.rpartition(b") ")
                _state, parent, _group, session = fields.split()[:4]
                if name == _STUB and int(session) == self._process.pid:
                    # STUB MODEL REGION ...; a zombie's command line is empty.
                    words = file.with_name("cmdline").read_bytes().split(b"\0")
                    shared = Path(f"/proc/{int(parent)}/root/dev/shm")  # the image may have its own
                    used |= {shared / os.fsdecode(region) for region in words[2:3]}
        self._memory |= used
        now = time.monotonic()
        unused = [each for each in self._memory - used if os.access(each, os.F_OK)]
        self._dead_since = {each: self._dead_since.get(each, now) for each in unused}
        return any(now - since > _DEAD_S for since in self._dead_since.values())


def _free_ports() -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for each in sockets:
            each.bind((_HOST, 0))
        return [each.getsockname()[1] for each in sockets]


def _cause(error: OSError) -> str:
    return ": ".join(str(part) for part in (error.filename, error.strerror) if part)


def _say(text: str) -> None:
    sys.stderr.write(f"exec: {text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        prog="exec",
        usage="exec [options] -- COMMAND ...",
        description="Run COMMAND beside a server of this image; NUML_GRPC_URL says where it is.",
    )
    device = flags.add_mutually_exclusive_group()
    device.add_argument("--cpu", action="store_const", const=["--cpu"], dest="device", default=[])
    device.add_argument("--gpu", action="store_const", const=["--gpu"], dest="device")
    start = "seconds until every model must have given its reference output (120)"
    flags.add_argument("--timeout", type=float, default=120.0, metavar="S", help=start)
    outside = "outside of the image: start its server with Apptainer, COMMAND runs where you are"
    flags.add_argument("--image", metavar="SIF", help=outside)
    add_job_options(flags)
    return flags


def within_image(image: str | None, flags: Sequence[str]) -> list[str]:
    """Return the words before a program of an image; none if this is in it.

    Args:
        flags: Those of ``serve``, which uses a GPU where the image has models for one.
    """
    if image is None:
        return []
    has_gpus = "--gpu" in flags or ("--cpu" not in flags and _DRIVER.exists())
    return ["apptainer", "exec", *(["--nv"] if has_gpus else []), image]


def main() -> int:
    """Run ``exec``; return the command's exit status, or 125 if it was not run."""
    words, command = split_words(sys.argv[1:])
    options = _parser().parse_args(words)
    within = within_image(options.image, options.device)
    try:
        job = Job.of(options, command)
        if not within and not Path(_BIN, "serve").exists():
            raise JobError("no image here: --image FILE.sif")
    except JobError as error:
        _say(str(error))
        return 2
    with Signals() as signals, ExitStack() as stack:
        try:
            remains = stack.enter_context(Remains())
        except OSError as error:
            _say(_cause(error))
            return FAILED
        log = options.log or remains.folder / "server.log"
        server = Server(signals, remains, within, options.device, log)
        try:
            server.start(options.timeout)
            command, variables = job.told(remains.folder, server.grpc, server.http)
            return signals.run(command, {**os.environ, **variables}, remains, server.watch)
        except (StartError, JobError) as error:
            _say(str(error))
            return FAILED
        except StoppedError as error:
            _say(str(error))
            return 128 + error.number
        except OSError as error:
            status, why = refused(command, error)
            _say(why)
            return status
        finally:
            server.stop()
