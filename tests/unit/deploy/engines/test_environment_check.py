"""Checks before a launch. A script stands for the environment's Python: what is tested is
what the kit makes of its answers; the integration tests use the real one."""

import json
from pathlib import Path

import pytest

from deploy.deployment.deployment import Deployment, Ports
from deploy.deployment.state import DeploymentFolder
from deploy.engines.local import LocalEngine, check_stub_fits
from deploy.engines.resolved import Resolved
from deploy.environment.check import check_models_answer
from deploy.environment.environment import Environment
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import Lock
from deploy.host.errors import EnvironmentSetupError, RepositoryError
from deploy.host.paths import cache_folder
from deploy.triton.distribution import TritonDistribution
from numl_formats.repository import DATA_FILES
from tests.unit.deploy.site_repository import write_environment


def _environment(folder: Path, answer: str = "", status: int = 0) -> Environment:
    write_environment(folder, answer, status)
    (folder / "lib").mkdir()
    (folder / "lib" / "libpython3.11.so.1.0").touch()
    lock, python = Lock("3.11", None, folder, "l", {}), Interpreter(folder, "3.11.7", folder)
    return Environment("numl", "serving", lock, python, False, "d", folder, folder)


def _model(folder: Path) -> Path:
    folder.mkdir()
    for name in DATA_FILES:
        (folder / name).touch()
    return folder


def test_a_stub_for_another_python_is_refused(tmp_path):
    triton = TritonDistribution(root=tmp_path, stub_python="3.12")
    answer = json.dumps(["3.11.7", "python", "/usr", "/no", None, None])
    why = r"has Python 3\.11\.7; the stub is built for 3\.12"
    with pytest.raises(EnvironmentSetupError, match=why):
        check_stub_fits(_environment(tmp_path / "e", answer), triton)


@pytest.mark.parametrize("missing", ["bin/activate", "lib/libpython3.11.so.1.0"])
def test_an_environment_that_lacks_what_the_stub_needs_is_refused(tmp_path, missing):
    environment = _environment(tmp_path / "e")
    (environment.folder / missing).unlink()
    triton = TritonDistribution(root=tmp_path, stub_python="3.11")
    with pytest.raises(EnvironmentSetupError, match=f"has no {Path(missing).name}"):
        check_stub_fits(environment, triton)


def test_the_server_itself_finds_the_libpython_of_its_stubs():
    """Else it makes them 0100 on a host without one, or fails if they are another user's."""
    engine = LocalEngine(Resolved(Deployment()))
    ports = Ports(http=8000, grpc=8001, metrics=8002)
    _, variables, _ = engine.process(DeploymentFolder("numl"), ports, "identity", "prefix")
    folders = variables["LD_LIBRARY_PATH"].split(":")
    assert str(engine.environment_here.libpython.parent) in folders


def test_a_check_that_passed_is_not_repeated_until_something_changes(tmp_path):
    environment = _environment(tmp_path / "e", '{"prefix": "%s"}')
    model = _model(tmp_path / "m")
    for _ in range(2):
        check_models_answer(environment, [model], threads=1)
    assert (environment.folder / "runs").read_text() == "run\n"
    (model / "model.json").write_text("{}")
    check_models_answer(environment, [model], threads=1)
    assert (environment.folder / "runs").read_text() == "run\nrun\n"


@pytest.mark.parametrize(
    ("answer", "status", "error", "cause"),
    [
        ('{"model": "m", "ok": false, "error": "wrong"}', 1, RepositoryError, "model m: wrong"),
        ("", 3, EnvironmentSetupError, "does not work"),
    ],
    ids=["a wrong answer", "no answer"],
)
def test_a_check_that_failed_is_told_and_not_remembered(tmp_path, answer, status, error, cause):
    environment = _environment(tmp_path / "e", answer, status)
    with pytest.raises(error, match=cause):
        check_models_answer(environment, [_model(tmp_path / "m")], threads=1)
    assert not (cache_folder() / "checked").exists()
