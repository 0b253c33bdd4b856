"""Starts that fail by their execution environment: a cause in one line, in time."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.environment.environment import MARKER
from deploy.environment.interpreter import Interpreter, find_interpreter
from deploy.host.failures import diagnose
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.config import LaunchSettings
from deploy.triton.golden import read_golden
from deploy.triton.stage import VERSION, plan_models, stage
from tests.environments import numpy_1
from tests.failed_start import GOOD_MODEL, Bench
from tests.kit import lacking
from tests.unit.deploy.site_repository import write_archive


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
def standard():
    return numpy_1()


@pytest.fixture(scope="session")
def numpy_2(tmp_path_factory, standard):
    """An environment with the stub's Python and a numpy that this Triton cannot use."""
    folder = tmp_path_factory.mktemp("numpy2") / "environment"
    return _virtual_environment(folder, standard.interpreter, "numpy>=2")


@pytest.fixture(scope="session")
def other_python(tmp_path_factory, standard):
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


def _absent(bench: Bench) -> Path:
    return bench.folder / "no" / "such.env.tar.gz"


def _no_archive(bench: Bench) -> Path:
    path = bench.folder / "env.tar.gz"
    path.write_bytes(b"(\xb5/\xfd" + os.urandom(2000))  # what a zst archive starts with
    return path


def _cut_off(bench: Bench) -> Path:
    path = write_archive(bench.folder / "env.tar.gz", more={"lib/x": os.urandom(400_000)})
    path.write_bytes(path.read_bytes()[:100_000])
    return path


def _wrong_root(bench: Bench) -> Path:
    return write_archive(bench.folder / "env.tar.gz", ["env/bin/activate"])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (_absent, "its execution environment"),
        (_no_archive, "is not a tar or tar.gz archive"),
        (_cut_off, "packed execution environment is truncated or damaged"),
        (_wrong_root, "bin/activate"),
    ],
)
def test_a_broken_environment_is_named(bench, make, said):
    assert said in bench.failure(bench.plan(environment=make(bench), code=GOOD_MODEL)).cause


def test_an_environment_without_a_python_is_named_although_triton_hangs(bench):
    empty = bench.folder / "environment"
    (empty / "bin").mkdir(parents=True)
    (empty / "bin" / "activate").write_text("")
    failure = bench.failure(bench.plan(environment=empty, code=GOOD_MODEL))
    # The stub takes the host's libpython, or that of the kit's own environment.
    assert "numpy" in failure.cause or "no standard library" in failure.cause


def test_an_activate_script_that_exits_ends_at_the_deadline(bench):
    bad = bench.folder / "environment"
    (bad / "bin").mkdir(parents=True)
    (bad / "bin" / "activate").write_text("exit 1\n")
    failure = bench.failure(bench.plan(environment=bad, code=GOOD_MODEL), deadline=6)
    assert "not ready in time" in failure.cause or "ended while it initialised" in failure.cause


def test_numpy_2_is_named_although_triton_is_ready(bench, numpy_2):
    """READY, HTTP 200, an answer whose shape is right, and no values in it."""
    failure = bench.failure(bench.plan(environment=numpy_2, code=GOOD_MODEL))
    assert failure.cause.startswith(
        "model echo is ready but gives wrong answers: output y is empty"
    )
    assert "numpy" in failure.cause
    assert "numpy < 2" in failure.remedy


# With another Python's environment the stub finds no libpython of its own version there and takes
# the one on the server's library path, the kit's own, with the packages of that Python.


def _with_packages(code: str, *environments: Path) -> str:
    """Let the host's Python have these environments' packages (a stub ignores PYTHONPATH)."""
    found = [str(next((e / "lib").glob("python3.*")) / "site-packages") for e in environments]
    return f"import sys; sys.path.extend({found})\n{code}"


def test_an_environment_of_another_python_is_named_where_the_host_s_has_no_numpy(
    bench, other_python
):
    plan = bench.plan(environment=other_python.folder, code=GOOD_MODEL)
    cause = bench.failure(plan).cause
    assert "no numpy: not the execution environment's" in cause


def test_an_environment_of_another_python_cannot_be_seen_in_what_a_plain_model_answers(
    bench, other_python, standard
):
    """Ready and right, by another interpreter with other packages, and not a line about it.

    Even ``sys.prefix`` is the environment's: a virtual environment gives it to any Python.
    """
    code = _with_packages(GOOD_MODEL, standard.packages)
    code += "    def initialize(self, args):\n"
    code += "        print('RUNS', *sys.version_info[:2], sys.prefix, flush=True)\n"
    plan = bench.plan(environment=other_python.folder, code=code)
    bench.start(plan)
    # Triton loads the model again, for the __pycache__ beside it, and may be stopped meanwhile.
    said = bench.said.partition("Signal (15) received")[0]
    assert f"RUNS 3 11 {other_python.folder}\n" in said
    assert diagnose(said) is None


def test_an_environment_of_another_python_is_named_by_our_own_models(bench, other_python, standard):
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
        bench.plan_to_serve(repository),
        golden={"nugraph3": read_golden(version / "golden.npz")},
    )
    assert failure.cause == (
        f"model nugraph3 is not running in its execution environment: {other_python.folder} is for "
        f"Python {other_python.interpreter.version}, this is Python {standard.interpreter.version}"
    )
    assert "Python must be the version that the stub is built for" in failure.remedy
