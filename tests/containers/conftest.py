"""A real Docker engine, a real registry, the image and the .sif, built by the kit's own functions.

Nothing here is skipped where a tool is missing: the test fails and says what to install. What a
test makes in the engine is removed again; layers that were built stay, as Docker's cache.
"""

import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import NotFound
from docker.models.containers import Container

from deploy.artefacts.context import make_context
from deploy.artefacts.docker_client import connect
from deploy.artefacts.image import BaseImage, BuiltImage, build_image, debian_name, ensure_base
from deploy.artefacts.labels import Source, labels
from deploy.artefacts.sif import SifBuilder
from deploy.artefacts.site import KIT_ALONE
from deploy.artefacts.tools import SifTools, find_tools
from deploy.client.probe import Probe, SmokeResult, smoke
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.environment.environment import Environment, plan_environment
from deploy.host.console import Say
from deploy.host.files import built_folder, locked
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.distribution import ensure_distribution
from deploy.triton.golden import read_golden
from deploy.triton.release import find_release
from tests.bucket import bucket  # noqa: F401
from tests.environments import ignore
from tests.kit import until

RELEASE = find_release("24.10")
EPOCH = 1_700_000_000
SHARED = "NUMLKIT_TEST_SHARED"
IMAGE = "image"
START_S = 180
HEALTH = "/opt/numl/bin/health"
# On a busy host Triton takes longer to end its model processes than the 5 s that it has, and tells
# by its exit status.
STOPS = "--exit-timeout-secs=40"

# As a cluster's strictest rules have it: any user id, nothing may be written, no privileges.
LOCKED_DOWN: dict[str, Any] = {
    "user": "12345:0",
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
    "tmpfs": {"/tmp": ""},
}


def pytest_configure(config: pytest.Config) -> None:
    """Make a folder that every user may read, for what one process makes for all."""
    if not hasattr(config, "workerinput"):
        folder = tempfile.TemporaryDirectory(prefix="numlkit-test-")
        config.add_cleanup(folder.cleanup)
        config.add_cleanup(forget_image)
        Path(folder.name).chmod(0o755)
        os.environ[SHARED] = folder.name


def forget_image() -> None:
    """Remove the image that these tests share."""
    noted = Path(os.environ[SHARED], IMAGE)
    if noted.exists():
        with closing(connect()) as engine:
            engine.images.remove(noted.read_text(), force=True)


def made_once(name: str, make: Callable[[Path], object]) -> Path:
    """Return what ``make`` has made at a path, here or in another process of these tests."""
    path = Path(os.environ[SHARED], name)
    with locked(path.with_name(f"{name}.lock")):
        if not path.exists():
            make(path)
    return path


@pytest.fixture(scope="session")
def engine():
    client = connect()
    yield client
    client.close()


@dataclass(frozen=True)
class Ingredients:
    """What the image is made of."""

    environment: Environment
    base: BaseImage

    @property
    def labels(self) -> dict[str, str]:
        """All but the base's."""
        source = Source("0123456789abcdef", EPOCH, "https://example.org/numlkit")
        return labels(source, self.environment, RELEASE)


@pytest.fixture(scope="session")
def ingredients(engine):
    environment = plan_environment("serving", relocatable=True).make(ignore)
    name = debian_name(RELEASE.glibc)
    base = ensure_base(engine, name=name, digest=None, say=ignore)
    return Ingredients(environment, base)


@pytest.fixture(scope="session")
def context(ingredients):
    """The folder that the image is built from; tests copy it before they change it."""

    def make(folder: Path) -> None:
        environment = ingredients.environment
        distribution = ensure_distribution(RELEASE, environment.lock.python, ignore)
        with built_folder(folder) as partial:
            make_context(
                partial, environment=environment, release=RELEASE, distribution=distribution,
                base="slim", say=ignore, site=KIT_ALONE,
            )  # fmt: skip

    return made_once("context", make)


@pytest.fixture(scope="session")
def tags(engine):
    """Makes names for images, unlike any other's; the images lose them at the end."""
    made: list[str] = []

    def make(name: str) -> str:
        made.append(f"numlkit-test/{name}:{secrets.token_hex(4)}")
        return made[-1]

    yield make
    for tag in made:
        if engine.images.list(name=tag):
            engine.images.remove(tag, force=True)


@dataclass(frozen=True)
class ImageBuilder:
    """Builds images on the slim base, unless told another."""

    engine: docker.DockerClient
    ingredients: Ingredients

    def __call__(
        self, context: Path, tag: str, *, base: BaseImage | None = None, say: Say = ignore
    ) -> BuiltImage:
        base, labels = base or self.ingredients.base, self.ingredients.labels
        return build_image(self.engine, context, base=base, labels=labels, tag=tag, say=say)


@pytest.fixture(scope="session")
def build_from(engine, ingredients):
    return ImageBuilder(engine, ingredients)


@pytest.fixture(scope="session")
def image(engine, build_from, context):
    """The image for serving, on the slim base."""

    def make(path: Path) -> None:
        path.write_text(build_from(context, f"numlkit-test/slim:{secrets.token_hex(4)}").tag)

    tag = made_once(IMAGE, make).read_text()
    built = engine.images.get(tag)
    return BuiltImage(tag, str(built.id), int(built.attrs["Size"]))


@pytest.fixture(scope="session")
def tools():
    return find_tools("zstd")


@dataclass(frozen=True)
class SifOfImage:
    """Builds a .sif from the image with the settings of these tests."""

    engine: docker.DockerClient
    image: str
    tools: SifTools

    def __call__(self, out: Path) -> Path:
        SifBuilder(self.tools, EPOCH, ignore).from_image(self.engine, self.image, out)
        return out


@pytest.fixture(scope="session")
def build(engine, image, tools):
    return SifOfImage(engine, image.tag, tools)


@pytest.fixture(scope="session")
def sif(build):
    """The .sif, built from the image."""
    return made_once("numl.sif", build)


@dataclass(frozen=True)
class Server:
    """A container that serves."""

    container: Container
    urls: tuple[str, ...]

    def exec(self, *command: str) -> tuple[int, str]:
        done = self.container.exec_run(list(command))
        return done.exit_code, done.output.decode()

    def wait_healthy(self) -> None:
        status, words = self.exec(HEALTH, "--wait", str(START_S))
        assert status == 0, words + self.logs()

    def answers(self) -> list[SmokeResult]:
        """What every model answers to its golden event, at every port."""
        return [
            smoke(Probe(url), model, read_golden(MODEL_REPOSITORY / model / "1" / "golden.npz"))
            for url in self.urls
            for model in DEFAULT_MODELS
        ]

    def assert_right(self) -> None:
        answers = self.answers()
        assert len(answers) == 2 * len(DEFAULT_MODELS)
        assert [answer for answer in answers if not answer.ok] == []

    def logs(self) -> str:
        return self.container.logs().decode()

    def stop(self) -> int:
        """Stop it as ``docker stop`` does; return its exit status."""
        self.container.stop(timeout=60)
        return int(self.container.wait()["StatusCode"])


@dataclass
class Runner:
    """Starts containers and removes them."""

    engine: docker.DockerClient
    containers: list[Container] = field(default_factory=list)

    def start(self, image: str, *command: str, **options: Any) -> Server:
        """Start a locked-down container whose ports are at free ports of loopback."""
        ports = {"8000/tcp": ("127.0.0.1", None), "8001/tcp": ("127.0.0.1", None)}
        container = self.engine.containers.run(
            image, list(command), detach=True, **({"ports": ports} | LOCKED_DOWN | options)
        )
        self.containers.append(container)
        container.reload()
        # A container that has ended already has no ports.
        ports = {name: there[0]["HostPort"] for name, there in container.ports.items() if there}
        schemes = (("http", "8000/tcp"), ("grpc", "8001/tcp"))
        urls = (f"{scheme}://127.0.0.1:{ports[name]}" for scheme, name in schemes if name in ports)
        return Server(container, tuple(urls))

    def close(self) -> None:
        for container in self.containers:
            try:
                container.remove(force=True, v=True)
            except NotFound:
                continue


def _runner(engine):
    runner = Runner(engine)
    yield runner
    runner.close()


runner = pytest.fixture(_runner)
shared_runner = pytest.fixture(_runner, scope="module")


@pytest.fixture(scope="session")
def registry(tmp_path_factory):
    """The address of an empty registry on loopback."""
    program = shutil.which("docker-registry")
    assert program, "no registry to test with: sudo apt-get install docker-registry"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    folder = tmp_path_factory.mktemp("registry")
    config = folder / "config.yml"
    config.write_text(
        f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {folder / 'data'}\n"
        "  delete:\n    enabled: true\n"
        f"http:\n  addr: {address}\n"
    )
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", config], stdout=log, stderr=log)
    try:
        until(lambda: _answers(f"http://{address}/v2/"), "the registry answers")
        yield address
    finally:
        process.terminate()
        process.wait()
        shutil.rmtree(folder / "data", ignore_errors=True)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False
