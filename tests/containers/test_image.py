"""The image in a real Docker engine: built, run as a cluster would, broken, stopped."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import pytest
from docker.errors import ImageNotFound
from docker.types import Mount

from deploy.deployment import DEFAULT_MODELS
from deploy.errors import BuildError
from deploy.images.base import BaseImage, ensure_base
from deploy.images.build import BuiltImage, build_image
from deploy.images.labels import labels
from deploy.images.triton import triton_layer
from deploy.paths import cache_folder
from deploy.server.distribution import ensure_distribution
from tests.containers.conftest import (
    HEALTH,
    RELEASE,
    START_S,
    Ingredients,
    Runner,
    Server,
    say,
    until,
)

MB = 1_000_000
SECOND = 1_000_000_000  # in nanoseconds, as the engine wants it
QUICK_HEALTHCHECK = {
    "test": ["CMD", HEALTH],
    "interval": SECOND,
    "timeout": 30 * SECOND,
    "retries": 2,
    "start_period": START_S * SECOND,
}
KILL = """
for folder in /proc/[0-9]*; do
  words=$(tr '\\0' ' ' <"$folder/cmdline")
  if [[ $words == "%s"* ]]; then kill -KILL "${folder#/proc/}"; break; fi
done
"""
STUB = "/opt/tritonserver/backends/python/triton_python_backend_stub"
SERVER = "/opt/tritonserver/bin/tritonserver"


@pytest.fixture(scope="module")
def server(shared_runner: Runner, image: BuiltImage) -> Server:
    """A locked-down server, for tests that leave it healthy."""
    server = shared_runner.start(image.tag)
    server.wait_healthy()
    return server


@pytest.fixture
def changed_context(context: Path) -> Iterator[Path]:
    """A copy of the context; a file in it is replaced, never written to."""
    with tempfile.TemporaryDirectory(dir=context.parent) as folder:
        copy = Path(folder) / "context"
        shutil.copytree(context, copy, copy_function=os.link)
        yield copy


def replace(path: Path, content: bytes) -> None:
    mode = path.stat().st_mode
    path.unlink()
    path.write_bytes(content)
    path.chmod(mode)


def layers(engine: docker.DockerClient, image: str) -> list[str]:
    found: list[str] = engine.images.get(image).attrs["RootFS"]["Layers"]
    return found


class TestALockedDownServer:
    def test_answers_rightly_over_http_and_grpc(self, server: Server) -> None:
        answers = server.answers()
        assert len(answers) == 2 * len(DEFAULT_MODELS)
        assert [answer for answer in answers if not answer.ok] == []

    def test_is_healthy_in_one_line(self, server: Server) -> None:
        assert server.exec(HEALTH) == (
            0,
            "healthy: nugraph2, nugraph2_cpu, nugraph3 gave their golden answers\n",
        )

    def test_passes_its_check_without_the_server(self, server: Server) -> None:
        status, words = server.exec("/opt/numl/bin/check")
        reports = [json.loads(line) for line in words.splitlines() if line.startswith("{")]
        assert status == 0
        assert [r["ok"] for r in reports if "model" in r] == [True] * len(DEFAULT_MODELS)
        assert reports[0]["prefix"] == "/opt/numl/env"

    def test_keeps_its_admin_endpoints_closed(self, server: Server) -> None:
        script = (
            "import urllib.request, urllib.error\n"
            "for path in ('systemsharedmemory/status', 'logging', 'trace/setting'):\n"
            "    try: print(urllib.request.urlopen(f'http://127.0.0.1:8000/v2/{path}').status)\n"
            "    except urllib.error.HTTPError as error: print(error.code)\n"
        )
        status, words = server.exec("/opt/numl/env/bin/python", "-c", script)
        assert (status, words.split()) == (0, ["403"] * 3)


def test_a_stop_is_graceful(runner: Runner, image: BuiltImage) -> None:
    server = runner.start(image.tag)
    server.wait_healthy()
    assert server.stop() == 0
    assert "successfully unloaded 'nugraph3'" in server.logs()


@pytest.mark.parametrize("end", ["stopped", "stopped while it loads", "killed"])
def test_nothing_is_left_where_the_host_s_folders_are_used(
    runner: Runner, image: BuiltImage, end: str
) -> None:
    # As under Apptainer, where /tmp and /dev/shm are the host's.
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        for folder in (scratch, memory):
            Path(folder).chmod(0o1777)
        mounts = [Mount("/tmp", scratch, type="bind"), Mount("/dev/shm", memory, type="bind")]
        server = runner.start(image.tag, mounts=mounts, tmpfs={})
        until(lambda: any(Path(memory).iterdir()), START_S, "the stubs have begun")
        assert [path.name[:11] for path in Path(scratch).iterdir()] == ["python_env_"]
        if end == "killed":
            server.wait_healthy()
            server.exec("bash", "-c", KILL % SERVER)
            assert server.container.wait()["StatusCode"] == 137
        else:
            if end == "stopped":
                server.wait_healthy()
            server.stop()
        assert list(Path(memory).iterdir()) == []
        assert list(Path(scratch).iterdir()) == []


def test_a_dead_stub_makes_the_container_unhealthy(runner: Runner, image: BuiltImage) -> None:
    server = runner.start(image.tag, healthcheck=QUICK_HEALTHCHECK)

    def state() -> str:
        server.container.reload()
        return str(server.container.attrs["State"]["Health"]["Status"])

    until(lambda: state() == "healthy", START_S, "healthy")
    server.exec("bash", "-c", KILL % f"{STUB} /opt/numl/models/cpu/nugraph3/")
    until(lambda: state() == "unhealthy", START_S, "unhealthy")
    status, words = server.exec(HEALTH)
    assert status == 1
    # Whichever instance is asked: the dead one, or the one that hides the loss.
    assert words.startswith("unhealthy: nugraph3: ")
    assert "Stub process 'nugraph3_0_" in words or "1 of its 2 processes are gone" in words
    assert words.count("\n") == 1


def test_a_broken_model_is_named_and_the_others_serve(
    runner: Runner, image: BuiltImage, tmp_path: Path
) -> None:
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"not weights")
    target = "/opt/numl/models/cpu/nugraph3/1/weights.safetensors"
    server = runner.start(image.tag, mounts=[Mount(target, str(weights), type="bind")])
    until(
        lambda: server.exec(HEALTH)[1].startswith("unhealthy: nugraph3: not ready: Internal: "),
        START_S,
        "only the broken model is unhealthy",
    )
    good = {answer.model for answer in server.answers() if answer.ok}
    assert good == {"nugraph2", "nugraph2_cpu"}


def test_what_a_user_keeps_for_other_pythons_does_not_reach_the_models(
    runner: Runner, image: BuiltImage, tmp_path: Path
) -> None:
    # Under Apptainer a user's home folder and environment are in the container.
    tmp_path.chmod(0o755)
    for package in ("home/.local/lib/python3.11/site-packages/numpy", "path/torch"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('a user\\'s own')\n")
    server = runner.start(
        image.tag,
        mounts=[Mount("/home", str(tmp_path), type="bind")],
        environment={"HOME": "/home/home", "PYTHONPATH": "/home/path", "PYTHONHOME": "/home"},
    )
    server.wait_healthy()


def test_other_ports_and_flags_of_tritonserver_can_be_given(
    runner: Runner, image: BuiltImage
) -> None:
    server = runner.start(
        image.tag, "--log-verbose=1", "--id=a-name", environment={"NUML_HTTP_PORT": "18000"}
    )
    server.wait_healthy()
    assert "loading" in server.logs()
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:18000/v2').read())"
    assert '"name":"a-name"' in server.exec("/opt/numl/env/bin/python", "-c", script)[1]


class TestAGPU:
    def test_an_image_without_gpu_models_says_so_in_a_line(
        self, runner: Runner, image: BuiltImage
    ) -> None:
        server = runner.start(image.tag, "--gpu")
        assert server.container.wait()["StatusCode"] == 2
        assert server.logs() == (
            "serve: this image has no models for a GPU: leave out --gpu, or use the image of "
            "flavour gpu\n"
        )

    def test_an_image_with_gpu_models_says_what_to_do_where_there_is_no_gpu(
        self, runner: Runner, image: BuiltImage, tmp_path: Path
    ) -> None:
        mounts = [Mount("/opt/numl/models/gpu", str(tmp_path), type="bind")]
        server = runner.start(image.tag, mounts=mounts)
        assert server.container.wait()["StatusCode"] == 2
        assert server.logs().startswith("serve: no usable GPU here: ")
        assert server.logs().count("\n") == 1
        assert "--cpu" in server.logs()

    def test_an_image_with_gpu_models_serves_on_the_cpu_when_asked_to(
        self, runner: Runner, image: BuiltImage, tmp_path: Path
    ) -> None:
        mounts = [Mount("/opt/numl/models/gpu", str(tmp_path), type="bind")]
        runner.start(image.tag, "--cpu", mounts=mounts).wait_healthy()


class TestTheImage:
    def test_says_what_it_is(
        self, engine: docker.DockerClient, image: BuiltImage, ingredients: Ingredients
    ) -> None:
        config = engine.images.get(image.tag).attrs["Config"]
        assert labels(ingredients.base, ingredients.facts).items() <= config["Labels"].items()
        assert config["User"] == "1000:0"
        assert config["Entrypoint"] == ["/opt/numl/bin/serve"]
        assert set(config["ExposedPorts"]) == {"8000/tcp", "8001/tcp", "8002/tcp"}
        assert config["StopSignal"] == "SIGTERM"
        assert config["Healthcheck"]["Test"] == ["CMD", HEALTH]

    def test_holds_nothing_of_the_build_and_everybody_may_read_it(
        self, engine: docker.DockerClient, image: BuiltImage
    ) -> None:
        script = (
            "import json, os, pathlib, stat\n"
            "below = [p for p in pathlib.Path('/opt').rglob('*')]\n"
            "print(json.dumps({\n"
            "  'unreadable': [str(p) for p in below if not os.access(p, os.R_OK)],\n"
            "  'writable': [str(p) for p in below if not p.is_symlink()\n"
            "               and os.access(p, os.W_OK)],\n"
            "  'owners': sorted({(s.st_uid, s.st_gid) for s in map(os.lstat, below)}),\n"
            "  'setuid': [str(p) for p in below if p.lstat().st_mode & 0o6000],\n"
            "  'archives': [str(p) for p in below if p.suffix in ('.tar', '.whl', '.conda')],\n"
            "  'opt': sorted(os.listdir('/opt')), 'numl': sorted(os.listdir('/opt/numl')),\n"
            "  'tmp': os.listdir('/tmp'),\n"
            "}))\n"
        )
        out = engine.containers.run(
            image.tag,
            ["-IBc", script],
            entrypoint="/opt/numl/env/bin/python",
            user="12345:0",
            remove=True,
        )
        found = json.loads(out)
        assert found == {
            "unreadable": [],
            "writable": [],
            "owners": [[0, 0]],
            "setuid": [],
            "archives": [],
            "opt": ["numl", "tritonserver"],
            "numl": ["bin", "checked.json", "env", "models"],
            "tmp": [],
        }

    def test_is_at_most_as_large_as_wanted(
        self, server: Server, image: BuiltImage, capsys: pytest.CaptureFixture[str]
    ) -> None:
        folders = ["/usr", "/opt/tritonserver", "/opt/numl/models", "/opt/numl/env"]
        _, words = server.exec("du", "-s", "-B1", *folders)
        with capsys.disabled():
            print(f"\nimage: {image.size / MB:.0f} MB")
            for line in words.splitlines():
                size, folder = line.split()
                print(f"  {folder}: {int(size) / MB:.0f} MB")
        assert image.size <= 1200 * MB


class TestABuild:
    def test_keeps_the_packages_when_our_python_changes(
        self,
        engine: docker.DockerClient,
        ingredients: Ingredients,
        image: BuiltImage,
        context: Path,
        changed_context: Path,
        tags: Callable[[str], str],
    ) -> None:
        for name in ("models/cpu/nugraph3/1/model.py", "bin/health"):
            replace(changed_context / name, (context / name).read_bytes() + b"# changed\n")
        serving = changed_context / "serving.tar"
        serving.unlink()
        with tarfile.open(context / "serving.tar") as old, tarfile.open(serving, "w") as new:
            for member in old:
                member.mtime += 1
                new.addfile(member, old.extractfile(member))
        tag = tags("changed")
        build_image(
            engine,
            changed_context,
            base=ingredients.base,
            facts=ingredients.facts,
            tag=tag,
            say=say,
        )
        of_base = layers(engine, ingredients.base.reference)
        before, after = layers(engine, image.tag), layers(engine, tag)
        kept = len(of_base) + 2
        assert before[:kept] == after[:kept]
        assert before[kept] != after[kept]

    @pytest.mark.parametrize(
        ("name", "content", "cause"),
        [
            ("1/weights.safetensors", b"not weights", r"nugraph3/1: .*weights"),
            ("1/model.py", b"import no_such_package\n", r"nugraph3: not ready: .*no_such_package"),
        ],
    )
    def test_fails_in_a_line_and_without_a_name_when_a_model_cannot_answer(
        self,
        engine: docker.DockerClient,
        ingredients: Ingredients,
        changed_context: Path,
        tags: Callable[[str], str],
        name: str,
        content: bytes,
        cause: str,
    ) -> None:
        replace(changed_context / "models" / "cpu" / "nugraph3" / name, content)
        tag = tags("broken")
        with pytest.raises(BuildError, match=cause) as caught:
            build_image(
                engine,
                changed_context,
                base=ingredients.base,
                facts=ingredients.facts,
                tag=tag,
                say=say,
            )
        assert "\n" not in caught.value.cause
        with pytest.raises(ImageNotFound):
            engine.images.get(tag)

    def test_that_is_interrupted_gives_no_name(
        self,
        engine: docker.DockerClient,
        ingredients: Ingredients,
        context: Path,
        tags: Callable[[str], str],
    ) -> None:
        def interrupt(text: str) -> None:
            if "COPY models" in text:
                raise KeyboardInterrupt

        tag = tags("interrupted")
        with pytest.raises(KeyboardInterrupt):
            build_image(
                engine,
                context,
                base=ingredients.base,
                facts=ingredients.facts,
                tag=tag,
                say=interrupt,
            )
        with pytest.raises(ImageNotFound):
            engine.images.get(tag)

    def test_on_nvidia_s_layout_adds_the_stub_for_its_python(
        self,
        engine: docker.DockerClient,
        ingredients: Ingredients,
        changed_context: Path,
        tags: Callable[[str], str],
        tmp_path: Path,
    ) -> None:
        """NVIDIA's registry cannot be reached from where these tests run everywhere.

        A stand-in has the layout of its image: the same server with the stub for Python 3.10,
        in the same folders, on a small Debian instead of Ubuntu with CUDA.
        """
        nvidias = ensure_distribution(cache_folder(), RELEASE, "3.10", say)
        ours = ensure_distribution(cache_folder(), RELEASE, "3.11", say)
        triton_layer(nvidias, tmp_path / "triton.tar", base="slim", say=say)
        recipe = f"FROM {ingredients.base.reference}\nADD triton.tar /\n"
        (tmp_path / "Dockerfile").write_text(recipe)
        stand_in = tags("nvidia")
        engine.images.build(path=str(tmp_path), tag=stand_in, rm=True)
        (changed_context / "triton.tar").unlink()
        triton_layer(ours, changed_context / "triton.tar", base="ngc", say=say)
        assert (changed_context / "triton.tar").stat().st_size < 10 * MB
        # The build itself starts the server and asks every model.
        build_image(
            engine,
            changed_context,
            base=BaseImage(reference=stand_in, name=stand_in, digest="sha256:none"),
            facts=ingredients.facts,
            tag=tags("ngc"),
            say=say,
        )


class TestARegistry:
    def test_takes_the_image_and_gives_it_back(
        self, engine: docker.DockerClient, image: BuiltImage, registry: str, runner: Runner
    ) -> None:
        name = f"{registry}/numlkit:cpu"
        engine.images.get(image.tag).tag(name)
        for message in engine.images.push(name, stream=True, decode=True):
            assert "error" not in message
        engine.images.remove(name)
        pulled = engine.images.pull(name)
        try:
            assert pulled.id == image.id
            assert pulled.attrs["RepoDigests"][0].startswith(f"{registry}/numlkit@sha256:")
            runner.start(name).wait_healthy()
        finally:
            runner.close()
            engine.images.remove(name)

    def test_gives_a_base_by_name_and_by_digest(
        self, engine: docker.DockerClient, ingredients: Ingredients, registry: str
    ) -> None:
        name = f"{registry}/debian:bookworm-slim"
        engine.images.get(ingredients.base.reference).tag(name)
        for message in engine.images.push(name, stream=True, decode=True):
            assert "error" not in message
        engine.images.remove(name)
        try:
            found = _base(engine, name, None)
            assert (found.reference, found.name) == (name, name)
            pinned = _base(engine, name, found.digest)
            assert pinned.reference == f"{registry}/debian@{found.digest}"
            assert pinned.digest == found.digest
            with pytest.raises(BuildError, match="cannot pull"):
                _base(engine, name, "sha256:" + "0" * 64)
        finally:
            engine.images.remove(name, force=True)


def _base(engine: docker.DockerClient, name: str, digest: str | None) -> BaseImage:
    return ensure_base(engine, name=name, digest=digest, cache=cache_folder(), say=say)
