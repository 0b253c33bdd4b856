"""Each way a start is known to fail, provoked in a real Triton: a cause in one line, in time."""

from __future__ import annotations

import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from deploy.client.probe import Probe
from deploy.deployment.deployment import Deployment
from deploy.deployment.state import LaunchPlan
from deploy.engines.local import LocalEngine, ProcessServer, check_stub_fits
from deploy.engines.resolved import Resolved
from deploy.environment.environment import MARKER, Environment, plan_environment
from deploy.environment.interpreter import Interpreter, find_interpreter
from deploy.host.console import Console
from deploy.host.errors import EnvironmentSetupError, LaunchError
from deploy.host.failures import diagnose
from deploy.host.paths import CHECKOUT, MODEL_REPOSITORY, cache_folder
from deploy.triton.config import LaunchSettings
from deploy.triton.distribution import TritonDistribution
from deploy.triton.golden import GoldenEvent, read_golden
from deploy.triton.stage import VERSION, plan_models, stage
from tests.kit import SOON_S, free_ports, lacking, leftovers

DEADLINE_S = 30
GOOD_MODEL = """
import triton_python_backend_utils as pb_utils
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([
            pb_utils.Tensor("y", pb_utils.get_input_tensor_by_name(r, "x").as_numpy())
        ]) for r in requests]
"""
CONFIG = """
name: "echo"
backend: "python"
input {{ name: "x" data_type: TYPE_FP32 dims: -1 }}
output {{ name: "y" data_type: TYPE_FP32 dims: -1 }}
instance_group {{ kind: {kind} count: 1 }}
parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{environment}" }} }}
"""
GOLDEN = {"echo": GoldenEvent({"x": np.ones(3, np.float32)}, {"y": np.ones(3, np.float32)})}


@dataclass
class Bench:
    """A scratch model repository and a plan to serve it."""

    folder: Path
    environment: Path

    def plan(self, *, environment: Path | str, code: str, kind: str = "KIND_CPU") -> LaunchPlan:
        version = self.folder / "repository" / "echo" / "1"
        version.mkdir(parents=True, exist_ok=True)
        (version / "model.py").write_text(code)
        text = CONFIG.format(kind=kind, environment=environment)
        (version.parent / "config.pbtxt").write_text(text)
        return self.plan_to_serve(version.parents[1])

    def plan_to_serve(self, served: Path) -> LaunchPlan:
        # Planned for a model that there is, and then served from the scratch repository.
        deployment = Deployment(name="failing", models=("nugraph3",), ports=free_ports())
        plan = LocalEngine(Resolved(deployment)).plan()
        repository = str(plan.repository)
        arguments = tuple(a.replace(repository, str(served)) for a in plan.arguments)
        return plan.model_copy(update={"arguments": arguments, "log": self.folder / "log"})

    def start(
        self,
        plan: LaunchPlan,
        deadline: float = DEADLINE_S,
        golden: Mapping[str, GoldenEvent] = GOLDEN,
        protocol: str = "http",
    ) -> None:
        """Wait until a server is ready, and stop it, as a supervisor does."""
        server = ProcessServer(plan, lambda **_changes: None)
        started = time.monotonic()
        try:
            server.wait_ready(
                Probe(f"{protocol}://127.0.0.1:{getattr(plan.ports, protocol)}", timeout=3),
                golden,
                deadline=started + deadline,
                stopped=lambda: False,
            )
        finally:
            assert time.monotonic() - started < deadline + SOON_S
            server.stop()
            assert not leftovers(plan.shm_prefix, server.scratch), "a failed start leaves nothing"

    def failure(
        self,
        plan: LaunchPlan,
        deadline: float = DEADLINE_S,
        golden: Mapping[str, GoldenEvent] = GOLDEN,
        protocol: str = "http",
    ) -> LaunchError:
        with pytest.raises(LaunchError) as caught:
            self.start(plan, deadline, golden, protocol)
        assert "\n" not in caught.value.cause
        assert caught.value.remedy
        return caught.value


@pytest.fixture(scope="session")
def environment() -> Path:
    LocalEngine(Resolved(Deployment())).prepare(Console("quiet").say)
    return plan_environment("serving").folder


@pytest.fixture
def bench(tmp_path: Path, environment: Path) -> Bench:
    return Bench(tmp_path, environment)


def _virtual_environment(folder: Path, interpreter: Interpreter, *packages: str) -> Path:
    """Make an environment that Triton accepts, as the kit does: libpython lies in its lib."""
    python = str(interpreter.executable)
    subprocess.run([python, "-m", "venv", "--without-pip", str(folder)], check=True)
    if packages:
        pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
        subprocess.run([*pip, "install", "--quiet", *packages], check=True)
    (folder / "lib" / interpreter.libpython.name).symlink_to(interpreter.libpython)
    return folder


@pytest.fixture(scope="session")
def standard() -> Environment:
    return plan_environment("serving")


@pytest.fixture(scope="session")
def numpy_2(tmp_path_factory: pytest.TempPathFactory, standard: Environment) -> Path:
    """An environment with the stub's Python and a numpy that this Triton cannot use."""
    folder = tmp_path_factory.mktemp("numpy2") / "environment"
    return _virtual_environment(folder, standard.interpreter, "numpy>=2")


@pytest.fixture(scope="session")
def other_python(tmp_path_factory: pytest.TempPathFactory, standard: Environment) -> Environment:
    """An environment whose Python is not the stub's."""
    others = {"3.12", "3.13", "3.10", "3.14", "3.9", "3.8"} - {standard.lock.python}
    interpreter = find_interpreter(sorted(others))
    if interpreter is None:
        lacking(
            f"this test needs a Python other than {standard.lock.python}, with its libpython, "
            "on PATH or among pyenv's versions"
        )
    folder = tmp_path_factory.mktemp("other") / "environment"
    _virtual_environment(folder, interpreter)
    return replace(standard, folder=folder, digest="d" * 64, interpreter=interpreter)


def _tar(path: Path, names: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in names.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o755
            archive.addfile(member, io.BytesIO(content))
    return path


def _absent(bench: Bench) -> Path:
    return bench.folder / "no" / "such.env.tar.gz"


def _no_archive(bench: Bench) -> Path:
    path = bench.folder / "env.tar.gz"
    path.write_bytes(b"(\xb5/\xfd" + os.urandom(2000))  # what a zst archive starts with
    return path


def _cut_off(bench: Bench) -> Path:
    path = _tar(bench.folder / "env.tar.gz", {"bin/activate": b"", "lib/x": os.urandom(400_000)})
    path.write_bytes(path.read_bytes()[:100_000])
    return path


def _damaged(bench: Bench) -> Path:
    path = bench.folder / "env.tar.gz"
    content = bytearray(
        gzip.decompress(_tar(path, {"a": b"x" * 600, "bin/activate": b""}).read_bytes())
    )
    content[1536:2048] = os.urandom(512)
    path.write_bytes(gzip.compress(bytes(content)))
    return path


def _wrong_root(bench: Bench) -> Path:
    return _tar(bench.folder / "env.tar.gz", {"env/bin/activate": b""})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_absent, "its execution environment"),
        (_no_archive, "is not a tar or tar.gz archive"),
        (_cut_off, "packed execution environment is truncated or damaged"),
        (_damaged, "packed execution environment is truncated or damaged"),
        (_wrong_root, "bin/activate"),
    ],
)
def test_a_broken_environment_is_named(
    bench: Bench, make: Callable[[Bench], Path], said: str
) -> None:
    assert said in bench.failure(bench.plan(environment=make(bench), code=GOOD_MODEL)).cause


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import no_such_package\n", "lacks the Python package no_such_package"),
        ("import ctypes\nraise OSError('libmpi.so.12: cannot open shared object file')\n",
         "lacks the library libmpi.so.12"),
        ("x = 1\n", "defines no class TritonPythonModel"),
        (GOOD_MODEL + "    def initialize(self, args):\n        import os; os._exit(3)\n",
         "its process died during initialisation"),
        (GOOD_MODEL + "    def initialize(self, args):\n        raise ValueError('bad weights')\n",
         "bad weights"),
        (GOOD_MODEL.replace("as_numpy()", "as_numpy() * 2"), "is ready but answers wrongly"),
    ],
)  # fmt: skip
def test_a_broken_model_is_named(bench: Bench, code: str, said: str) -> None:
    assert said in bench.failure(bench.plan(environment=bench.environment, code=code)).cause


def test_a_model_that_never_ends_initialising_ends_at_the_deadline(bench: Bench) -> None:
    code = GOOD_MODEL + "    def initialize(self, args):\n        import time; time.sleep(600)\n"
    failure = bench.failure(bench.plan(environment=bench.environment, code=code), deadline=6)
    assert "not ready in time (waited for echo)" in failure.cause


def test_an_environment_without_libpython_is_named_although_triton_hangs(bench: Bench) -> None:
    empty = bench.folder / "environment"
    (empty / "bin").mkdir(parents=True)
    (empty / "bin" / "activate").write_text("")
    failure = bench.failure(bench.plan(environment=empty, code=GOOD_MODEL), deadline=15)
    assert "libpython3.11.so.1.0" in failure.cause or "numpy" in failure.cause


def test_an_activate_script_that_exits_ends_at_the_deadline(bench: Bench) -> None:
    bad = bench.folder / "environment"
    (bad / "bin").mkdir(parents=True)
    (bad / "bin" / "activate").write_text("exit 1\n")
    failure = bench.failure(bench.plan(environment=bad, code=GOOD_MODEL), deadline=6)
    assert "not ready in time" in failure.cause or "ended while it initialised" in failure.cause


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_numpy_2_is_named_although_triton_is_ready(
    bench: Bench, numpy_2: Path, protocol: str
) -> None:
    """READY, HTTP 200, an answer whose shape is right, and no values in it."""
    failure = bench.failure(bench.plan(environment=numpy_2, code=GOOD_MODEL), protocol=protocol)
    assert failure.cause.startswith("model echo is ready but answers wrongly: output y is empty")
    assert "numpy" in failure.cause
    assert failure.remedy is not None
    assert "numpy < 2" in failure.remedy


def test_an_environment_of_another_python_is_refused_before_the_launch(
    other_python: Environment, standard: Environment
) -> None:
    triton = TritonDistribution(root=cache_folder(), stub_python=standard.lock.python)
    with pytest.raises(EnvironmentSetupError, match=r"the stub is built for 3\.11"):
        check_stub_fits(other_python, triton)


# With another Python's environment the stub finds no libpython of its own version there and
# takes the host's, with the packages of the host's Python. What happens then depends on the
# host, so the tests say what the host has.


def _on_host(plan: LaunchPlan, interpreter: Interpreter) -> LaunchPlan:
    """Let the server's host have a Python of the stub's version."""
    libraries = f"{plan.variables['LD_LIBRARY_PATH']}:{interpreter.libpython.parent}"
    return plan.model_copy(update={"variables": {**plan.variables, "LD_LIBRARY_PATH": libraries}})


def _with_packages(code: str, *environments: Path) -> str:
    """Let the host's Python have these environments' packages (a stub ignores PYTHONPATH)."""
    found = [str(next((e / "lib").glob("python3.*")) / "site-packages") for e in environments]
    return f"import sys; sys.path.extend({found})\n{code}"


def test_an_environment_of_another_python_is_named_where_the_host_s_has_no_numpy(
    bench: Bench, other_python: Environment, standard: Environment
) -> None:
    plan = bench.plan(environment=other_python.folder, code=GOOD_MODEL)
    cause = bench.failure(_on_host(plan, standard.interpreter)).cause
    assert "no numpy: not the execution environment's" in cause


def test_an_environment_of_another_python_cannot_be_seen_in_what_a_plain_model_answers(
    bench: Bench, other_python: Environment, standard: Environment
) -> None:
    """Ready and right, by another interpreter with other packages, and not a line about it.

    Even ``sys.prefix`` is the environment's: a virtual environment gives it to any Python.
    """
    code = _with_packages(GOOD_MODEL, standard.packages)
    code += "    def initialize(self, args):\n"
    code += "        print('RUNS', *sys.version_info[:2], sys.prefix, flush=True)\n"
    plan = bench.plan(environment=other_python.folder, code=code)
    bench.start(_on_host(plan, standard.interpreter))
    log = plan.log.read_text()
    assert f"RUNS 3 11 {other_python.folder}\n" in log
    assert diagnose(log) is None


def test_an_environment_of_another_python_is_named_by_our_own_models(
    bench: Bench, other_python: Environment, standard: Environment
) -> None:
    """Even where the host's Python has all that they import, and the digest is right."""
    facts = {"digest": other_python.digest, "python": other_python.interpreter.version}
    (other_python.folder / MARKER).write_text(json.dumps(facts))
    settings = LaunchSettings(
        environment=other_python.folder,
        parameters={"environment_digest": other_python.digest},
        instances=1,
    )
    repository = bench.folder / "repository"
    stage(plan_models(MODEL_REPOSITORY, ["nugraph3"], settings, {}), repository)
    version = repository / "nugraph3" / VERSION
    code = (version / "model.py").read_text()
    (version / "model.py").write_text(_with_packages(code, bench.environment, standard.packages))
    failure = bench.failure(
        _on_host(bench.plan_to_serve(repository), standard.interpreter),
        golden={"nugraph3": read_golden(version / "golden.npz")},
    )
    assert failure.cause == (
        f"model nugraph3 is not running in its execution environment: {other_python.folder} is for "
        f"Python {other_python.interpreter.version}, this is Python {standard.interpreter.version}"
    )
    assert failure.remedy is not None
    assert "Python must be the version that the stub is built for" in failure.remedy


def test_a_gpu_model_on_a_host_without_gpu_is_named(bench: Bench) -> None:
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL, kind="KIND_GPU")
    assert bench.failure(plan).cause == "a model needs a GPU and the server sees none"


def _with_small(plan: LaunchPlan, folder: str, size: str, keep: Sequence[Path] = ()) -> LaunchPlan:
    """Let the server see a small file system in place of ``folder`` (a mount namespace).

    Folders below it that the server needs are kept.
    """
    steps = [f"mount --rbind {folder} /mnt", f"mount -t tmpfs -o size={size} none {folder}"]
    for path in keep:
        if path.is_relative_to(folder):
            steps.append(f"mkdir -p {path}")
            steps.append(f"mount --rbind /mnt/{path.relative_to(folder)} {path}")
    script = " && ".join([*steps, 'exec "$0" "$@"'])
    wrapped = ("unshare", "--map-root-user", "--mount", "sh", "-c", script, *plan.arguments)
    return plan.model_copy(update={"arguments": wrapped})


def test_a_shared_memory_folder_that_is_too_small_is_named(bench: Bench) -> None:
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    failure = bench.failure(_with_small(plan, "/dev/shm", "512k"))
    assert failure.cause.startswith("/dev/shm is too small")


def test_a_shared_memory_folder_that_is_too_small_for_a_request_is_named(bench: Bench) -> None:
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    large = np.ones(1_000_000, np.float32)
    golden = {"echo": GoldenEvent({"x": large}, {"y": large})}
    failure = bench.failure(_with_small(plan, "/dev/shm", "3m"), golden=golden)
    assert failure.cause.endswith("/dev/shm is full: a request's tensors do not fit")


def test_a_tmp_that_is_too_small_for_a_packed_environment_is_named(bench: Bench) -> None:
    packed = bench.folder / "env.tar.gz"
    _tar(packed, {"bin/activate": b"", "lib/large": os.urandom(3_000_000)})
    plan = bench.plan(environment=packed, code=GOOD_MODEL)
    small = _with_small(plan, "/tmp", "1m", keep=(cache_folder(), bench.folder, CHECKOUT))
    assert bench.failure(small).cause.startswith("/tmp is full")


@pytest.mark.parametrize("which", ["http", "grpc", "metrics"])
def test_a_port_stolen_between_check_and_start_is_named(bench: Bench, which: str) -> None:
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    with socket.create_server(("127.0.0.1", getattr(plan.ports, which))):
        assert str(getattr(plan.ports, which)) in bench.failure(plan).cause


def test_a_configuration_that_triton_refuses_is_named(bench: Bench) -> None:
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    path = bench.folder / "repository" / "echo" / "config.pbtxt"
    path.write_text(path.read_text().replace("dims: -1", "dims: -7", 1))
    assert "echo" in bench.failure(plan).cause
