"""The sync agent, a server that polls its folder, and clients of that server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import tritonclient.http as triton_http

from numl_formats.golden import difference
from tests.bucket import READER
from tests.by_hand import triton
from tests.inputs import inputs_of
from tests.kit import SOON_S, free_ports, until
from tests.programs import run_program
from tests.synced import MODELS, House

POLL_S = 0.5
# Between two requests of a client: what is under test is that each is answered, not how many.
PAUSE_S = 0.03


@dataclass
class Sync:
    """The agent, as a process that reads with an identity that may not write."""

    house: House
    folder: Path
    url: str
    server: str = "http://127.0.0.1:9"
    poll: float = POLL_S
    variables: Mapping[str, str] = field(default_factory=dict)
    process: subprocess.Popen[str] | None = None
    status_port: int = field(default_factory=lambda: free_ports().http)

    @property
    def log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def command(self, *flags: str) -> list[str]:
        return [
            *(str(self.house.environment.python), "-IB", str(self.house.agent)),
            *(self.url, str(self.folder), f"--poll={self.poll}", f"--server={self.server}"),
            *(f"--templates={self.house.templates}", *flags),
        ]

    @property
    def environment(self) -> dict[str, str]:
        keys = {"AWS_ACCESS_KEY_ID": READER[0], "AWS_SECRET_ACCESS_KEY": READER[1]}
        return {"PATH": os.environ["PATH"], **keys, **self.variables}

    def once(self, status: int = 0) -> str:
        """Look once; return what it says as it ends with this status."""
        done = run_program(self.command("--once"), env=self.environment, timeout=SOON_S)
        assert (done.returncode, done.stderr) == (status, ""), done
        return done.stdout

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = subprocess.Popen(
                self.command(f"--status-port={self.status_port}"),
                env=self.environment, stdout=log, stderr=log, text=True,
            )  # fmt: skip

    def kill(self, number: signal.Signals = signal.SIGKILL) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout=SOON_S)

    def metrics(self) -> dict[str, float]:
        address = f"http://127.0.0.1:{self.status_port}/metrics"
        with urllib.request.urlopen(address, timeout=5) as answer:
            return {
                name: float(value)
                for name, value in re.findall(r"^(\w+\S*) (\S+)$", answer.read().decode(), re.M)
            }

    def tree(self) -> dict[str, bytes]:
        """Return what the server can see."""
        top = self.folder / "repository"
        return {
            path.relative_to(top).as_posix(): path.read_bytes()
            for path in sorted(top.rglob("*"))
            if path.is_file() and path.name != "__pycache__"
        }


@dataclass
class Polling:
    """A Triton of this host that polls a folder as the image's does."""

    house: House
    repository: Path
    log: Path
    http: int = field(default_factory=lambda: free_ports().http)
    _running: ExitStack = field(default_factory=ExitStack)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def start(self) -> None:
        self.repository.mkdir(parents=True, exist_ok=True)
        python, distribution = self.house.environment.libpython, self.house.distribution
        self._running.enter_context(
            triton(distribution, self.repository, self.log, http=self.http, libpython=python)
        )
        until(lambda: self.answers("/v2/health/live"), "the server lives")

    def stop(self) -> None:
        self._running.close()

    def answers(self, path: str) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=5):
                return True
        except OSError:
            return False

    def health(self) -> str:
        """Return what the image's check says."""
        words = ["-IB", "-m", "numl_serving.health", "--port", str(self.http)]
        command = [self.house.environment.python, *words, self.repository]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


@dataclass
class Load:
    """Clients that ask all the time; every answer must be right for one of the versions."""

    server: Polling
    clients: int = 2
    versions: list[tuple[float, str, int]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    @contextmanager
    def running(self) -> Iterator[Load]:
        threads = [threading.Thread(target=self._ask) for _ in range(self.clients)]
        for thread in threads:
            thread.start()
        try:
            yield self
        finally:
            self._ended.set()
            for thread in threads:
                thread.join()

    def first(self, version: int, after: float) -> float | None:
        """Return when the last of the models first answered with a version, after a time."""
        seen = {}
        for at, model, found in list(self.versions):
            if at > after and found == version:
                seen.setdefault(model, at)
        return max(seen.values()) if len(seen) == len(MODELS) else None

    def _ask(self) -> None:
        house = self.server.house
        golden = {
            (model, version): house.golden(model, version)
            for model in MODELS
            for version in house.versions
        }
        inputs = {model: inputs_of(triton_http, golden[model, 1].inputs) for model in MODELS}
        with triton_http.InferenceServerClient(f"127.0.0.1:{self.server.http}") as client:
            while not self._ended.is_set():
                for model in MODELS:
                    try:
                        answer = client.infer(model, inputs[model])
                    except Exception as error:  # whatever a client could meet
                        if "Request timeout expired" in str(error):
                            continue  # a busy host: clients come again
                        self.wrong.append(f"{model}: {error}")
                        continue
                    arrays = {name: answer.as_numpy(name) for name in golden[model, 1].outputs}
                    found = [
                        version
                        for version in house.versions
                        if difference(golden[model, version], arrays) is None
                    ]
                    if len(found) == 1:
                        self.versions.append((time.monotonic(), model, found[0]))
                    else:
                        self.wrong.append(f"{model}: right for versions {found}")
                    self._ended.wait(PAUSE_S)
