"""Runs the kit's commands as a person does, against a state folder of its own."""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NoReturn

import pytest

from deploy.deployment.deployment import EngineName, Ports
from deploy.deployment.ports import is_free
from deploy.deployment.state import ProcessId
from deploy.engines.instance import config_folder
from deploy.engines.leftovers import shared_memory_regions, shm_prefix, stubs_at
from deploy.host.paths import CHECKOUT
from tests.commands import run_command
from tests.programs import run_program

_CLAIMS: list[socket.socket] = []
NUMLKIT = str(Path(sys.executable).with_name("numlkit"))
SMALL = ("--models", "nugraph3", "--instances", "1")
# Far longer than anything takes that these tests wait for, on a host however busy.
SOON_S = 600


@dataclass
class Kit:
    """Runs the kit's commands with one engine.

    Attributes:
        state: The state folder.
        engine: What starts servers.
        image: What it starts them from.
        triton: Which Triton they have, if not the default.
        names: The deployments that were started.
        within: Words before each command, as of one that changes what the command sees.
        ports: Those of each deployment that was started. Tests beside this one choose from the
            same range, and a server that is started again wants the ports that it had.
    """

    state: Path
    engine: EngineName = "local"
    image: str | None = None
    triton: str | None = None
    names: list[str] = field(default_factory=list)
    within: tuple[str, ...] = ()
    ports: dict[str, str] = field(default_factory=dict)

    @property
    def variables(self) -> dict[str, str]:
        return {**os.environ, "XDG_STATE_HOME": str(self.state)}

    @property
    def start(self) -> list[str]:
        """The command that starts a deployment."""
        image = ["--image", self.image] if self.image is not None else []
        triton = ["--triton", self.triton] if self.triton is not None else []
        return [*self.within, NUMLKIT, "up", "--engine", self.engine, *image, *triton]

    def run(
        self, command: str, *flags: str, script: bool = False
    ) -> subprocess.CompletedProcess[str]:
        numlkit = [sys.executable, f"scripts/{command}.py"] if script else [NUMLKIT, command]
        words = self.start if command == "up" else [*self.within, *numlkit]
        if command == "up" and "--name" in flags and "--ports" not in flags:
            name = flags[flags.index("--name") + 1]
            if name not in self.ports:
                self.ports[name] = ",".join(map(str, free_ports().model_dump().values()))
            flags = (*flags, "--ports", self.ports[name])
        if not self.within:
            return run_command([*words[1:], *flags], self.variables, SOON_S)
        return run_program([*words, *flags], cwd=CHECKOUT, env=self.variables, timeout=SOON_S)

    def json(self, command: str, *flags: str) -> dict[str, Any]:
        done = self.run(command, "--json", *flags)
        assert done.stdout, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return {**answer, "status": done.returncode, "stderr": done.stderr}

    def up(self, name: str, *flags: str) -> dict[str, Any]:
        self.names.append(name)
        answer = self.json("up", "--name", name, *flags)
        if answer["status"] != 0:
            log = self.folder(name) / "server.log"
            said = log.read_text(errors="replace") if log.exists() else "none"
            raise AssertionError(f"{answer}\nits log:\n{said[-20_000:]}")
        return answer

    def refused(self, name: str, *flags: str) -> dict[str, Any]:
        """Have a start refused; nothing of it may be left."""
        answer = self.json("up", "--name", name, *flags)
        if answer["status"] == 0:
            self.names.append(name)  # to be ended
        assert answer["status"] == 1, answer
        assert len(answer["error"].splitlines()) == 1, answer
        assert answer["remedy"], answer
        assert "Traceback" not in answer["stderr"]
        assert not (self.folder(name) / "state.json").exists()
        assert not self.leftovers(name)
        return answer

    @cached_property
    def demo(self) -> dict[str, Any]:
        return self.up("demo")

    def folder(self, name: str) -> Path:
        return self.state / "numlkit" / "deployments" / name

    def noted(self, name: str) -> dict[str, Any]:
        """Return the state file: to be asked again and again, a status takes too much."""
        state: dict[str, Any] = json.loads((self.folder(name) / "state.json").read_text())
        return state

    def mended(self, name: str, count: Literal["heals", "restarts"]) -> dict[str, Any]:
        """Wait until a loss has been counted and all is right again; return the state file.

        It is often mended before a status could show it.
        """

        def right() -> bool:
            return self.noted(name)[count] > 0 and self.json("status", "--name", name)["ok"]

        until(right, f"{count} of {name}")
        return self.noted(name)

    def leftovers(self, name: str, scratch: Iterable[str | Path] = ()) -> list[Path]:
        """Return what is left of a deployment: in the engine, in /dev/shm, of scratch folders."""
        prefix = shm_prefix(self.folder(name))
        containers = [Path(c) for c in self._containers(name) if c == prefix.rstrip("-")]
        stubs = [Path(f"stub {stub.pid}") for stub in stubs_at(prefix)]
        return [*leftovers(prefix, scratch), *containers, *stubs]

    def _containers(self, name: str) -> list[str]:
        """Return the names of all containers, or of the deployment's instances."""
        if self.engine == "local":
            return []
        words = ["docker", "ps", "--all", "--format={{.Names}}"]
        if self.engine == "apptainer":
            words = ["apptainer", "instance", "list", "--json"]
        config = {"APPTAINER_CONFIGDIR": str(config_folder(self.folder(name)))}
        done = run_program(words, env={**os.environ, **config}, check=True)
        if self.engine == "docker":
            return done.stdout.split()
        return [found["instance"] for found in json.loads(done.stdout)["instances"]]

    def down(self, name: str) -> dict[str, Any]:
        return self.json("down", "--name", name)

    def end(self, name: str) -> None:
        """Stop a deployment at once: Triton takes a second for each process of a model."""
        if (self.folder(name) / "state.json").exists():
            state = self.noted(name)
            in_docker = self.engine == "docker" and state["container"]
            # Docker restarts a container whose server is killed, and cannot remove it meanwhile.
            killed = (state["supervisor"], None if in_docker else state["server"])
            for identity in filter(None, killed):
                process = ProcessId.model_validate(identity).process()
                if process is not None:
                    process.kill()
            if in_docker:
                words = ["docker", "rm", "--force", state["container"]]
                subprocess.run(words, check=True, capture_output=True)
        self.run("down", "--name", name)

    def close(self) -> None:
        for name in dict.fromkeys(self.names):
            self.end(name)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until ``condition`` holds; the longer it takes, the more rarely it is asked."""
    begun = time.monotonic()
    while not condition():
        waited = time.monotonic() - begun
        assert waited < SOON_S, f"{what}: not within {SOON_S} s"
        time.sleep(max(0.1, waited / 10))


def free_ports() -> Ports:
    """Return three free ports that no other test takes."""
    http, grpc, metrics = (free_port() for _ in range(3))
    return Ports(http=http, grpc=grpc, metrics=metrics)


def free_port(*offsets: int) -> int:
    """Return a free port that no other test takes, nor those at these distances from it.

    Below those that the system gives to clients' ends of connections, and not in the kit's range.
    """
    for port in random.sample(range(10_000, 32_000 - max(offsets, default=0)), 1000):
        wanted = [port, *(port + offset for offset in offsets)]
        if all(is_free("127.0.0.1", each) for each in wanted) and _claim(wanted):
            return port
    raise AssertionError("no port is free")


def _claim(ports: list[int]) -> bool:
    """Keep other tests from ports until this process ends, by names that the kernel holds."""
    names = [socket.socket(socket.AF_UNIX) for _ in ports]
    try:
        for name, port in zip(names, ports, strict=True):
            name.bind(f"\0numlkit-test-port-{port}")
    except OSError:
        for name in names:
            name.close()
        return False
    _CLAIMS.extend(names)
    return True


def open_to_all(folder: Path) -> None:
    """Let every user go into a folder that lies in the one for temporary files."""
    for each in (folder, *folder.parents):
        if each == Path(tempfile.gettempdir()):
            return
        each.chmod(each.stat().st_mode | 0o755)


def lacking(message: str) -> NoReturn:
    """End a test that needs more than the README asks of a host: CI has it all."""
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)


def leftovers(prefix: str, scratch: Iterable[str | Path] = ()) -> list[Path]:
    """Return what a deployment has left in /dev/shm, and which scratch folders still are.

    Other servers of this user may come and go meanwhile: nothing of theirs is looked at.
    """
    regions = shared_memory_regions(prefix)
    return [*regions, *(path for path in map(Path, scratch) if path.exists())]
