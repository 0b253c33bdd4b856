"""The image in a real Docker engine: built, run as a cluster would, broken, stopped."""

import json
import tempfile
from pathlib import Path

import pytest
from docker.types import Mount
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.triton.start import read_starts
from tests.containers.conftest import HEALTH, START_S, STOPS, Server
from tests.kit import until

SECOND = 1_000_000_000  # in nanoseconds, as the engine wants it
QUICK_HEALTHCHECK = {
    "test": ["CMD", HEALTH],
    "interval": SECOND,
    "timeout": 30 * SECOND,
    "retries": 2,
    "start_period": START_S * SECOND,
}
END = """
begin="%s"
for folder in /proc/[0-9]*; do
  words=$(tr '\\0' ' ' <"$folder/cmdline")
  if [[ $words == $begin* ]]; then kill -%s "${folder#/proc/}"; break; fi
done
"""
STUB = "/opt/tritonserver/backends/python/triton_python_backend_stub"
SERVER = "/opt/tritonserver/bin/tritonserver"


@pytest.fixture(scope="module")
def server(shared_runner, image):
    """A locked-down server, for tests that leave it healthy."""
    server = shared_runner.start(image.tag)
    server.wait_healthy()
    return server


@pytest.fixture
def gpu_models(tmp_path_factory):
    """The folder of an image with models for a GPU."""
    return Mount("/opt/numl/models/gpu", str(tmp_path_factory.mktemp("gpu")), type="bind")


@pytest.fixture
def host_folders():
    """Yield a folder for /tmp and one for /dev/shm, as the host's are under Apptainer."""
    with (
        tempfile.TemporaryDirectory() as scratch,
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
    ):
        for folder in (scratch, memory):
            Path(folder).chmod(0o1777)
        yield Path(scratch), Path(memory)


def mounts_of(folders: tuple[Path, Path]) -> list[Mount]:
    places = zip(("/tmp", "/dev/shm"), folders, strict=True)
    return [Mount(place, str(folder), type="bind") for place, folder in places]


class TestALockedDownServer:
    def test_answers_rightly_over_http_and_grpc(self, server):
        server.assert_right()

    def test_is_healthy_in_one_line(self, server):
        assert server.exec(HEALTH) == (
            0,
            "healthy: nugraph2, nugraph2_cpu, nugraph3 gave their golden answers\n",
        )

    def test_passes_its_check_without_the_server(self, server):
        status, words = server.exec("/opt/numl/bin/check")
        reports = [json.loads(line) for line in words.splitlines() if line.startswith("{")]
        assert status == 0
        assert [r["ok"] for r in reports if "model" in r] == [True] * len(DEFAULT_MODELS)
        assert reports[0]["prefix"] == "/opt/numl/env"

    def test_says_of_each_instance_how_long_its_start_took(self, server):
        assert len(read_starts(server.logs())) >= len(DEFAULT_MODELS)


def test_limits_ports_and_flags_are_a_user_s_to_set_and_packages_for_other_pythons_do_no_harm(
    runner, image, gpu_models, host_folders, tmp_path
):
    # Under Apptainer a user's home folder and environment are in the container.
    tmp_path.chmod(0o755)
    for package in ("home/.local/lib/python3.11/site-packages/numpy", "path/torch"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("raise RuntimeError('a user\\'s own')\n")
    pythons = {"HOME": "/home/home", "PYTHONPATH": "/home/path", "PYTHONHOME": "/home"}
    settings = {"NUML_WAITING": "7", "NUML_HITS": "5000", "NUML_HTTP_PORT": "18000"}
    server = runner.start(
        image.tag,
        *("--cpu", "--log-verbose=1", "--id=a-name", STOPS),
        mounts=[gpu_models, Mount("/home", str(tmp_path), type="bind"), *mounts_of(host_folders)],
        tmpfs={},
        environment=pythons | settings,
    )
    server.wait_healthy()
    script = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:18000/v2').read())"
    assert '"name":"a-name"' in server.exec("/opt/numl/env/bin/python", "-E", "-c", script)[1]
    shown = "cat /tmp/numl-models-*/nugraph3/config.pbtxt"
    config = text_format.Parse(server.exec("bash", "-c", shown)[1], ModelConfig())
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 7 * 3
    assert config.parameters["max_hits"].string_value == "5000"
    assert server.stop() == 0
    assert "successfully unloaded 'nugraph3'" in server.logs()
    assert [path for folder in host_folders for path in folder.iterdir()] == []


@pytest.mark.parametrize("end", ["stopped while it loads", "killed"])
def test_nothing_is_left_where_the_host_s_folders_are_used(runner, image, host_folders, end):
    scratch, memory = host_folders
    server = runner.start(image.tag, mounts=mounts_of(host_folders), tmpfs={})
    until(lambda: any(memory.iterdir()), "the stubs have begun")
    assert [path.name[:11] for path in scratch.iterdir()] == ["python_env_"]
    if end == "killed":
        server.wait_healthy()
        server.exec("bash", "-c", END % (SERVER, "KILL"))
        assert server.container.wait()["StatusCode"] == 137
    else:
        server.stop()
    assert list(memory.iterdir()) == []
    assert list(scratch.iterdir()) == []


def test_a_container_that_was_killed_leaves_no_shared_memory_to_the_next(
    runner, image, host_folders
):
    """As in a pod, whose folders outlive its containers; elsewhere others use them as well."""
    scratch, memory = host_folders

    def left() -> set[Path]:
        return {path for folder in (scratch, memory) for path in folder.iterdir()}

    def start(*flags: str, **environment: str) -> Server:
        options = {"mounts": mounts_of(host_folders), "tmpfs": {}, "environment": environment}
        return runner.start(image.tag, *flags, **options)

    others = memory / "others"
    others.touch()
    # With limits it makes a repository as well.
    killed = start(NUML_WAITING="7")
    until(lambda: len(list(memory.iterdir())) > 1, "the stubs have begun")
    killed.container.kill()  # all of it at once, as for want of memory
    killed.container.wait()
    before = left()
    made = {"numlkit", "numl", "python_env"}  # and in time one after the other fills the memory
    assert {path.name.split("-")[0][:10] for path in before} == made | {"others"}
    start("--no-such-flag").container.wait()
    assert left() == before
    start("--no-such-flag", NUML_OWN_SHM="yes").container.wait()
    assert left() == {others}


def test_a_server_that_aborts_is_started_twice_more(runner, image):
    """Triton does so at random, mostly while models start on a busy host."""
    server, abort = runner.start(image.tag), END % (SERVER, "ABRT")
    told = "serve: Triton has aborted: starting it once more\n"
    for n in (1, 2):
        until(lambda n=n: server.logs().count("loading: nugraph3") == n, "models that start")
        server.exec("bash", "-c", abort)
        until(lambda n=n: server.logs().count(told) == n, "a word")
    server.wait_healthy()
    server.assert_right()
    server.exec("bash", "-c", abort)
    assert server.container.wait()["StatusCode"] == 134


@pytest.mark.parametrize(
    ("limits", "models"),
    [({}, "/opt/numl/models/cpu"), ({"NUML_WAITING": "7"}, "/tmp/numl-models-??????")],
    ids=["the image's limits", "limits of its own"],
)
def test_a_dead_stub_makes_the_container_unhealthy(runner, image, limits, models):
    server = runner.start(image.tag, healthcheck=QUICK_HEALTHCHECK, environment=limits)

    def state() -> str:
        server.container.reload()
        return str(server.container.attrs["State"]["Health"]["Status"])

    until(lambda: state() == "healthy", "healthy")
    server.exec("bash", "-c", END % (f"{STUB} {models}/nugraph3/", "KILL"))
    until(lambda: state() == "unhealthy", "unhealthy")
    status, words = server.exec(HEALTH)
    assert status == 1
    # Whichever instance is asked: the dead one, or the one that hides the loss.
    assert words.startswith("unhealthy: nugraph3: ")
    assert "Stub process 'nugraph3_0_" in words or "1 of its 3 processes are gone" in words
    assert words.count("\n") == 1


def test_a_broken_model_is_named_and_the_others_serve(runner, image, tmp_path):
    weights = tmp_path / "weights.safetensors"
    weights.write_bytes(b"not weights")
    target = "/opt/numl/models/cpu/nugraph3/1/weights.safetensors"
    server = runner.start(image.tag, mounts=[Mount(target, str(weights), type="bind")])
    until(
        lambda: server.exec(HEALTH)[1] == "unhealthy: nugraph3: not ready\n",
        "only the broken model is unhealthy",
    )
    assert "failed to load 'nugraph3' version 1: Internal: " in server.logs()
    good = {answer.model for answer in server.answers() if answer.ok}
    assert good == {"nugraph2", "nugraph2_cpu"}


def test_an_image_without_gpu_models_says_so_in_a_line(runner, image):
    server = runner.start(image.tag, "--gpu")
    assert server.container.wait()["StatusCode"] == 2
    assert server.logs() == (
        "serve: this image has no models for a GPU: leave out --gpu, or use the image of "
        "flavour gpu\n"
    )


def test_an_image_with_gpu_models_says_what_to_do_where_there_is_no_gpu(runner, image, gpu_models):
    server = runner.start(image.tag, mounts=[gpu_models])
    assert server.container.wait()["StatusCode"] == 2
    assert server.logs().startswith("serve: no usable GPU here: ")
    assert server.logs().count("\n") == 1
    assert "--cpu" in server.logs()
