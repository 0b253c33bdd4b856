"""A site's own models are checked before anything is started."""

import tarfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.deployment.deployment import find_site_models
from deploy.engines import site as launch
from deploy.engines.site import Runtime, check_site
from deploy.host.errors import KitError
from deploy.triton.distribution import TritonDistribution
from deploy.triton.release import find_release
from tests.unit.deploy.engines.site import (
    ENSEMBLE,
    FITTING,
    IN_CONTAINER,
    resolve,
    staged,
    write_distribution,
)
from tests.unit.deploy.site_repository import CONFIG, ENVIRONMENT, write_archive, write_model


def check(repository: Path, runtime: Runtime = IN_CONTAINER, *models: str) -> list[str]:
    said: list[str] = []
    check_site(resolve(repository, *(models or find_site_models(repository))), runtime, said.append)
    return said


def failed(repository: Path, runtime: Runtime = IN_CONTAINER) -> KitError:
    with pytest.raises(KitError) as caught:
        check(repository, runtime)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy
    return caught.value


def write_archived(
    folder: Path, names: Iterable[str] = ENVIRONMENT, *, unpacked: bool = False
) -> tuple[Path, Path]:
    """Write model m with an environment of its own; return that and the model's folder."""
    environment = write_archive(folder / "e.tar.gz", names)
    if unpacked:
        with tarfile.open(environment) as tar:
            environment = folder / "their env"
            tar.extraction_filter = getattr(tarfile, "data_filter", None)
            tar.extractall(environment)
    return environment, write_model(folder, "m", environment=str(environment)).parent


def test_a_backend_that_is_not_there_is_named(tmp_path):
    write_model(tmp_path, "m", config=CONFIG.replace("python", "onnxruntime"))
    assert check(tmp_path) == [], "what a container has is not known"
    assert failed(tmp_path, replace(IN_CONTAINER, backends=frozenset({"python"}))).cause == (
        "model m needs backend onnxruntime; this Triton has python"
    )


def test_a_damaged_golden_event_is_named_before_anything_is_started(tmp_path):
    version = write_model(tmp_path, "m")
    (version / "golden.npz").write_text("not numpy")
    error = failed(tmp_path)
    assert error.cause == f"model m: {version}/golden.npz: not a reference event"
    assert error.remedy == "write it with numlkit golden MODEL"


def test_a_version_without_its_code_is_refused_whose_process_would_say_nothing(tmp_path):
    version = write_model(tmp_path, "m")
    (version / "model.py").rename(version / "net.py")
    error = failed(tmp_path)
    assert error.cause == "model m: version 1 has no model.py"
    with (tmp_path / "m" / "config.pbtxt").open("a") as config:
        config.write('default_model_filename: "net.py"\n')
    assert check(tmp_path) == []


def test_an_ensemble_of_a_model_that_is_not_served_is_refused(tmp_path):
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    failure = failed(tmp_path)
    assert failure.cause == "model e is an ensemble of m, which is not served"
    assert failure.remedy == "--models e,m"


def test_a_warm_up_that_triton_skips_is_told(tmp_path):
    write_model(tmp_path, "m", config=CONFIG + 'model_warmup { name: "zeros" }')
    assert check(tmp_path) == ["warning: model m: Triton skips warm-up 'zeros': batch_size is 0"]


def test_an_environment_that_would_not_serve_is_refused(tmp_path):
    names = [name for name in ENVIRONMENT if "activate" not in name]
    write_archived(tmp_path, names)
    assert "has no bin/activate" in failed(tmp_path).cause


def test_a_stub_for_another_python_than_the_environments_is_refused(tmp_path, monkeypatch):
    archive, folder = write_archived(tmp_path)
    stub = folder / "triton_python_backend_stub"
    stub.touch()
    monkeypatch.setattr(launch, "python_of_stub", lambda _program: "3.12")
    built = "model m: its stub is built for Python 3.12"
    assert failed(tmp_path).cause == f"{built}; {archive} has Python 3.10"
    monkeypatch.setattr(launch, "python_of_stub", lambda _program: "3.10")
    own = TritonDistribution.in_cache(find_release("24.10"), "3.10")
    for program in (own.executable, own.stub):
        program.parent.mkdir(parents=True)
        program.write_bytes(b"\0Failed to prepare CPython for the stub\0Words of this release\0")
    stub.write_bytes(b"\0Words of this release\0")
    assert check(tmp_path) == []
    stub.write_bytes(b"\0Words of another release\0")
    assert failed(tmp_path).cause == (
        f"model m: its stub {stub} is not of Triton 24.10, and would crash the server"
    )


def test_a_stub_for_another_python_than_the_kits_environment_is_refused(tmp_path, monkeypatch):
    version = write_model(tmp_path, "m")
    (version.parent / "triton_python_backend_stub").touch()
    monkeypatch.setattr(launch, "python_of_stub", lambda _program: "3.12")
    assert failed(tmp_path).cause == (
        "model m: its stub is built for Python 3.12; the kit's environment, in which it runs, "
        "has Python 3.11"
    )


def test_what_lies_beside_a_configuration_and_is_no_stub_is_named(tmp_path):
    version = write_model(tmp_path, "m")
    (version.parent / "triton_python_backend_stub").write_text("#!/bin/sh\n")
    what = "not a stub of Triton's Python backend (it is linked to no libpython)"
    assert failed(tmp_path).cause.endswith(f"triton_python_backend_stub: {what}")


def test_an_environment_whose_python_cannot_be_told_is_served_with_a_warning(tmp_path):
    archive, _ = write_archived(tmp_path, ["bin/activate"])
    assert check(tmp_path) == [f"warning: model m: cannot tell which Python {archive} has"]


def test_a_folder_with_blanks_is_refused_where_triton_is_given_its_name(tmp_path):
    write_archived(tmp_path, unpacked=True)
    on_host = replace(FITTING, in_container=False)
    assert "cannot use a path with spaces" in failed(tmp_path, on_host).cause
    assert check(tmp_path, FITTING) == []


def test_a_stub_for_the_environments_python_is_put_beside_the_model(tmp_path):
    write_archived(tmp_path)
    root = write_distribution("3.10")
    stub = staged(tmp_path).stub
    assert stub.program == root / "backends/python/triton_python_backend_stub"
    assert [path.name for path in stub.libraries] == ["libcudart-0.so", "libpython3.10.so.1.0"]
    assert staged(tmp_path, FITTING).stub is None
