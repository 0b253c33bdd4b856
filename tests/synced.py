"""A published bucket, the sync agent and a server that polls its folder, for tests."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.http as triton_http
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from deploy.environment.agent import agent_folder
from deploy.environment.environment import Environment, plan_environment
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.command import server_arguments, server_environment
from deploy.triton.config import LaunchSettings
from deploy.triton.distribution import TritonDistribution, ensure_distribution
from deploy.triton.golden import read_golden
from deploy.triton.release import find_release
from deploy.triton.stage import plan_models, write_templates
from numl_formats.golden import GoldenEvent, difference
from numl_formats.published import File, Model, Published, Release, published_release, rolled_back
from numl_formats.repository import DATA_FILES
from numl_formats.statement import statement
from numl_formats.trust import signature_path
from tests.bucket import BUCKET, READER, S3
from tests.kit import SOON_S, free_ports, until

MODELS = ("nugraph2_cpu", "nugraph3")
POLL_S = 0.5
# Between two requests of a client: what is under test is that each is answered, not how many.
PAUSE_S = 0.03

# Other weights of the same network, with the answers that belong to them.
_ALTER = """
import hashlib, json, sys
from pathlib import Path
import numpy as np
from numl_formats.golden import GoldenEvent, read_golden, write_golden
from numl_serving.event import Event
from numl_serving.runtime import Runtime
folder = Path(sys.argv[1])
weights = folder / "weights.safetensors"
content = weights.read_bytes()
begin = 8 + int.from_bytes(content[:8], "little")
changed = content[:begin] + (np.frombuffer(content[begin:], np.float32) * np.float32(0.9)).tobytes()
weights.write_bytes(changed)
card = json.loads((folder / "model.json").read_text())
card["weights"]["sha256"] = hashlib.sha256(changed).hexdigest()
(folder / "model.json").write_text(json.dumps(card))
inputs = read_golden(folder / "golden.npz").inputs
answer = Runtime.load(folder).infer(Event.from_tensors(inputs))
write_golden(folder / "golden.npz", GoldenEvent(inputs, answer))
"""


@dataclass(frozen=True)
class House:
    """What servers and agents are made of on this host: the same as in the image."""

    environment: Environment
    distribution: TritonDistribution
    agent: Path
    templates: Path
    versions: Mapping[int, Path]

    def golden(self, model: str, version: int) -> GoldenEvent:
        return read_golden(self.versions[version] / model / "golden.npz")


def make_house(folder: Path) -> House:
    """Make two versions of all models in a folder; 1 is the one in this repository."""

    def say(_line: str) -> None:
        pass

    environment = plan_environment("serving").make(say)
    release = find_release("24.10")
    distribution = ensure_distribution(release, environment.interpreter.short_version, say)
    versions = {number: folder / f"version-{number}" for number in (1, 2)}
    for number, place in versions.items():
        for model in MODELS:
            shutil.copytree(
                MODEL_REPOSITORY / model / "1", place / model,
                ignore=shutil.ignore_patterns("__pycache__"),
            )  # fmt: skip
            if number == 2:
                command = [environment.python, "-IBc", _ALTER, place / model]
                subprocess.run(command, check=True)
    settings = LaunchSettings(environment.folder, {}, 1)
    templates = folder / "templates"
    write_templates(plan_models(MODEL_REPOSITORY, MODELS, settings, {}), templates)
    return House(environment, distribution, agent_folder(environment, say), templates, versions)


def sign(key: EllipticCurvePrivateKey, content: bytes) -> bytes:
    """Return what ``cosign sign-blob`` writes."""
    return base64.b64encode(key.sign(content, ECDSA(SHA256())))


def write_key(key: EllipticCurvePrivateKey, path: Path) -> Path:
    """Write its public half, as cosign does."""
    pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    path.write_bytes(pem)
    return path


def new_key() -> EllipticCurvePrivateKey:
    return generate_private_key(SECP256R1())


@dataclass
class Publisher:
    """Writes what ``numlkit publish`` writes, in the same order.

    Attributes:
        key: What statements are signed with; None: they are not.
    """

    house: House
    s3: S3
    prefix: str
    key: EllipticCurvePrivateKey | None = None
    expires: datetime | None = None
    published: Published | None = None

    @property
    def url(self) -> str:
        return self.s3.destination(self.prefix)

    def put(self, path: str, content: bytes) -> None:
        key = f"{self.prefix}/{path}"
        self.s3.client().put_object(Bucket=BUCKET, Key=key, Body=content)

    def publish(self, number: int, version: int, **changed: bytes) -> float:
        """Publish a version of all models; return when its last PUT was answered.

        Args:
            changed: What lies in the bucket instead of a file that is named, by its stem.
        """
        models = {}
        for model in MODELS:
            files = {}
            for name in DATA_FILES:
                path = self.house.versions[version] / model / name
                content = path.read_bytes()
                files[name] = File(hashlib.sha256(content).hexdigest(), len(content))
                self.put(f"{model}/{version}/{name}", changed.get(path.stem, content))
            models[model] = Model(version, files)
        now = datetime.now(timezone.utc)
        new = Release(number, now, "0123abc", models)
        return self.state(published_release(self.published, new, created=now, expires=self.expires))

    def serve(self, number: int) -> float:
        """Have a release serve; return when the last PUT was answered."""
        assert self.published is not None
        now = datetime.now(timezone.utc)
        return self.state(rolled_back(self.published, number, created=now, expires=self.expires))

    def state(self, published: Published) -> float:
        """Put a statement, with its signature before it."""
        self.published, content = published, statement(published)
        if self.key is not None:
            self.put(signature_path(content), sign(self.key, content))
        self.put("published.json", content)
        return time.monotonic()


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

    def once(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command("--once"), env=self.environment, capture_output=True, text=True,
            check=False, timeout=SOON_S,
        )  # fmt: skip

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

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

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
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.http}"

    def start(self) -> None:
        self.repository.mkdir(parents=True, exist_ok=True)
        ports = free_ports().model_copy(update={"http": self.http})
        distribution = self.house.distribution
        command = server_arguments(
            distribution=distribution, repository=self.repository, listen="127.0.0.1", ports=ports,
            shm_prefix=f"numlkit-test-sync-{self.http}-", identity="sync",
        )  # fmt: skip
        variables = server_environment(
            distribution=distribution, libpython=self.house.environment.libpython,
            threads=1, inherited=os.environ, devices={},
        )  # fmt: skip
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)
        until(lambda: self.answers("/v2/health/live"), "the server lives")

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(timeout=SOON_S)

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
        inputs = {model: _inputs(golden[model, 1]) for model in MODELS}
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


def _inputs(event: GoldenEvent) -> list[Any]:
    inputs = []
    for name, array in event.inputs.items():
        kind = {np.dtype(np.float32): "FP32", np.dtype(np.int32): "INT32"}[array.dtype]
        tensor = triton_http.InferInput(name, list(array.shape), kind)
        tensor.set_data_from_numpy(np.ascontiguousarray(array))
        inputs.append(tensor)
    return inputs


class Proxy:
    """Passes connections on to a service, notes requests, and can stop after so many bytes."""

    def __init__(self, target: int) -> None:
        self.asked: list[str] = []
        self.sent = 0
        self.most: int | None = None
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def requests(self) -> int:
        return len(self.asked)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
            except OSError:
                return
            for pair in ((client, server, False), (server, client, True)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        try:
            while data := source.recv(8192):
                if back:
                    while self.most is not None and self.sent >= self.most:
                        time.sleep(0.02)
                    self.sent += len(data)
                else:
                    asked = re.findall(rb"^([A-Z]+ /\S*) HTTP/1", data, re.M)
                    self.asked += [line.decode() for line in asked]
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            end.close()
