"""A site's own model repository: what is read of it, and what a launch stages."""

import os
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from deploy.deployment import Deployment
from deploy.engines import site as launch
from deploy.engines.site import (
    Runtime,
    check_site,
    digest_site,
    fit_flavours,
    kit_models,
    site_models,
    stage_site_model,
)
from deploy.errors import KitError, RepositoryError
from deploy.repository.config import read_config
from deploy.repository.site import find_site_models, read_site_model
from deploy.repository.stage import stage
from deploy.repository.view import THE_HOST, View, mounted
from deploy.server.distribution import distribution_folder
from deploy.server.release import find_release
from tests.unit.deploy.site_repository import (
    CONFIG,
    ENVIRONMENT,
    environment_parameter,
    write_archive,
    write_model,
)

IN_CONTAINER = Runtime(
    environment=Path("/opt/numl/env"),
    python="3.11",
    stub=None,
    server_python="3.11",
    in_container=True,
)
FITTING = replace(IN_CONTAINER, server_python="3.10")
SERVED = """\
input {
  name: "x"
  data_type: TYPE_FP32
  dims: -1
}
output {
  name: "y"
  data_type: TYPE_FP32
  dims: -1
}
instance_group {
  count: 2
  kind: KIND_CPU
}
parameters {
  key: "EXECUTION_ENV_PATH"
  value {
    string_value: "/opt/numl/site/environments/1-their_env.tar.gz"
  }
}
backend: "python"
"""

ENSEMBLE = """\
platform: "ensemble"
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
ensemble_scheduling {
  step { model_name: "m" input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } }
}
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def listing(folder: Path) -> dict[str, str]:
    """Return what is in a folder: a link's target, a file's first word, or nothing."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(folder))] = f"-> {path.readlink()}"
        elif path.is_file():
            found[str(path.relative_to(folder))] = "file"
    return found


def deployment(repository: Path, *models: str) -> Deployment:
    return Deployment(models_dir=repository, models=models)


def test_folders_with_a_configuration_are_models(tmp_path: Path) -> None:
    write_model(tmp_path, "b")
    write_model(tmp_path, "a")
    (tmp_path / "environments").mkdir()
    (tmp_path / "README").touch()
    assert find_site_models(tmp_path) == ("a", "b")


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None])
def test_what_is_no_repository_is_refused(tmp_path: Path, make: object) -> None:
    make(tmp_path / "models")  # type: ignore[operator]
    with pytest.raises(RepositoryError, match=f"{tmp_path / 'models'}"):
        find_site_models(tmp_path / "models")


def test_what_is_served_is_the_versions_and_all_that_lies_beside_them(tmp_path: Path) -> None:
    version = write_model(tmp_path, "m")
    (version / "assets").mkdir()
    (version / "assets" / "weights.bin").touch()
    (version / "__pycache__").mkdir()
    (version / "__pycache__" / "model.pyc").touch()
    (version.parent / "labels.txt").touch()
    (version.parent / "0").mkdir()
    (version.parent / "0" / "old.py").touch()
    model = read_site_model(tmp_path, "m")
    assert model.versions == (1,)
    assert model.files == {
        "1/assets/weights.bin": version / "assets/weights.bin",
        "1/model.py": version / "model.py",
        "labels.txt": version.parent / "labels.txt",
    }
    assert (model.environment, model.stub) == (None, None)


def test_links_are_followed_and_told(tmp_path: Path) -> None:
    elsewhere = tmp_path / "releases" / "v7"
    elsewhere.mkdir(parents=True)
    (elsewhere / "model.py").touch()
    (tmp_path / "weights.bin").touch()
    repository = tmp_path / "models"
    folder = write_model(repository, "m").parent
    (folder / "2").symlink_to(elsewhere)
    (folder / "weights.bin").symlink_to(tmp_path / "weights.bin")
    model = read_site_model(repository, "m")
    assert model.files == {
        "2/model.py": elsewhere / "model.py",
        "weights.bin": tmp_path / "weights.bin",
    }
    view = mounted(repository, model.linked, [])
    assert view.places == (
        (repository, Path("/opt/numl/site/models")),
        (elsewhere, Path("/opt/numl/site/linked/1/v7")),
        (tmp_path / "weights.bin", Path("/opt/numl/site/linked/2/weights.bin")),
    )
    assert view.of(elsewhere / "model.py") == Path("/opt/numl/site/linked/1/v7/model.py")


@pytest.mark.parametrize("target", ["..", "nothing"])
def test_a_link_to_nowhere_or_to_itself_is_refused(tmp_path: Path, target: str) -> None:
    version = write_model(tmp_path, "m")
    (version / "link").symlink_to(target)
    with pytest.raises(RepositoryError, match=f"{version / 'link'}: a link to "):
        read_site_model(tmp_path, "m")


@pytest.mark.parametrize(
    ("config", "cause"),
    [
        ("nonsense", "not a model configuration"),
        ('name: "other"', "names its model 'other'"),
        ("version_policy { specific { versions: [7] } }", "has no version that its config.pbtxt"),
        (
            'backend: "python"' + environment_parameter("envs/e.tar.gz"),
            "EXECUTION_ENV_PATH 'envs/e.tar.gz' is relative, which Triton takes from the folder "
            "that it was started in",
        ),
        (
            'backend: "python"' + environment_parameter("s3://bucket/e.tar.gz"),
            "EXECUTION_ENV_PATH 's3://bucket/e.tar.gz' is relative",
        ),
        (
            'backend: "python"' + environment_parameter("/nowhere/e.tar.gz"),
            r"EXECUTION_ENV_PATH '/nowhere/e.tar.gz' is not there \(/nowhere/e.tar.gz\)",
        ),
    ],
)
def test_a_model_that_cannot_be_served_is_named(tmp_path: Path, config: str, cause: str) -> None:
    write_model(tmp_path, "m", config=config)
    with pytest.raises(RepositoryError, match=cause) as caught:
        read_site_model(tmp_path, "m")
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{folder}/shared/e.tar.gz", "shared/e.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/e.tar.gz", "models/m/e.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/../e.tar.gz", "models/e.tar.gz"),
    ],
)
def test_an_environment_is_found_where_triton_finds_it_and_is_no_file_of_the_model(
    tmp_path: Path, text: str, place: str
) -> None:
    write_model(tmp_path / "models", "m", environment=text.format(folder=tmp_path))
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    model = read_site_model(tmp_path / "models", "m")
    assert model.environment == tmp_path / place
    assert list(model.files) == ["1/model.py"]


def test_in_a_container_files_are_linked_to_their_mounts_and_nothing_is_copied(
    tmp_path: Path,
) -> None:
    repository, archive = tmp_path / "models", write_archive(tmp_path / "their env.tar.gz")
    version = write_model(repository, "m", environment=str(archive))
    np.savez(version / "golden.npz", **{"input/x": np.ones(1), "output/y": np.ones(1)})
    (version / "assets").mkdir()
    (version / "assets" / "tables.py").touch()
    before = {path: path.stat() for path in sorted(tmp_path.rglob("*"))}
    (model,) = site_models(deployment(repository, "m"))
    view = mounted(repository, model.linked, [archive])
    staged = stage_site_model(deployment(repository, "m"), model, FITTING, view)
    stage([staged], tmp_path / "staged")
    assert listing(tmp_path / "staged") == {
        "m/1/__pycache__": "file",
        "m/1/assets/__pycache__": "file",
        "m/1/assets/tables.py": "-> /opt/numl/site/models/m/1/assets/tables.py",
        "m/1/golden.npz": "file",
        "m/1/model.py": "-> /opt/numl/site/models/m/1/model.py",
        "m/config.pbtxt": "file",
    }
    assert (tmp_path / "staged/m/config.pbtxt").read_text() == SERVED
    assert {path: path.stat() for path in before} == before


def test_without_a_container_the_environment_stays_where_it_is(tmp_path: Path) -> None:
    archive = write_archive(tmp_path / "env.tar.gz")
    write_model(tmp_path / "models", "m", environment=str(archive))
    (model,) = site_models(deployment(tmp_path / "models", "m"))
    staged = stage_site_model(deployment(tmp_path / "models", "m"), model, FITTING, THE_HOST)
    assert staged.config.parameters["EXECUTION_ENV_PATH"].string_value == str(archive)
    assert staged.links == {"1/model.py": tmp_path / "models/m/1/model.py"}
    assert "EXECUTION_ENV_PATH" in model.config.parameters


def test_a_model_without_an_environment_gets_the_kits(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    (model,) = site_models(deployment(tmp_path, "m"))
    staged = stage_site_model(deployment(tmp_path, "m"), model, IN_CONTAINER, THE_HOST)
    assert staged.config.parameters["EXECUTION_ENV_PATH"].string_value == "/opt/numl/env"
    assert staged.stub is None
    assert "EXECUTION_ENV_PATH" not in model.config.parameters, "as it was read"


def test_a_model_without_an_environment_needs_the_one_with_nugraph_s_own_packages(
    tmp_path: Path,
) -> None:
    write_model(tmp_path, "m")
    assert fit_flavours(deployment(tmp_path, "nugraph3")) == ("serving", "cpu")
    assert fit_flavours(deployment(tmp_path, "nugraph3", "m")) == ("cpu",)
    on_gpu = deployment(tmp_path, "m").model_copy(update={"flavour": "gpu"})
    assert fit_flavours(on_gpu) == ("gpu",)


def test_an_ensemble_is_served_as_it_stands_with_its_empty_version(tmp_path: Path) -> None:
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    (model,) = site_models(deployment(tmp_path, "e"))
    staged = stage_site_model(deployment(tmp_path, "e"), model, IN_CONTAINER, THE_HOST)
    stage([staged], tmp_path / "staged")
    assert (tmp_path / "staged/e/1").is_dir()
    assert read_config(tmp_path / "staged/e/config.pbtxt") == model.config


def test_environments_get_plain_names_in_a_container_each_once(tmp_path: Path) -> None:
    inside, outside = tmp_path / "models/m/env", tmp_path / "$(rm -r *) env.tar.gz"
    view = mounted(tmp_path / "models", [tmp_path / "models/m"], [inside, outside, inside])
    assert view.places == (
        (tmp_path / "models", Path("/opt/numl/site/models")),
        (inside, Path("/opt/numl/site/environments/1-env")),
        (outside, Path("/opt/numl/site/environments/2-__rm_-r____env.tar.gz")),
    )
    assert view.of(inside) == Path("/opt/numl/site/environments/1-env")
    assert view.of(tmp_path / "models/m/1/model.py") == Path("/opt/numl/site/models/m/1/model.py")


def test_a_line_break_in_a_path_is_refused_before_an_engine_sees_it(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="a path with a line break cannot be mounted"):
        mounted(tmp_path, [], [tmp_path / "a\nb"])


def test_models_are_the_sites_or_the_kits_and_the_sites_take_precedence(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    write_model(tmp_path, "nugraph3")
    wanted = deployment(tmp_path, "nugraph2", "m", "nugraph3")
    assert kit_models(wanted) == ("nugraph2",)
    assert [model.name for model in site_models(wanted)] == ["m", "nugraph3"]


def test_a_model_that_nobody_has_is_answered_with_those_that_are_there(tmp_path: Path) -> None:
    write_model(tmp_path, "m")
    with pytest.raises(RepositoryError) as caught:
        site_models(deployment(tmp_path, "m", "other"))
    assert caught.value.cause == (f"no model 'other', neither in {tmp_path} nor among the kit's")
    assert caught.value.remedy == f"{tmp_path} has m"


def test_the_digest_follows_their_files_without_reading_them(tmp_path: Path) -> None:
    version = write_model(tmp_path, "m")
    before = digest_site(site_models(deployment(tmp_path, "m")))
    assert digest_site(site_models(deployment(tmp_path, "m"))) == before
    os.utime(version / "model.py", ns=(0, 0))
    assert digest_site(site_models(deployment(tmp_path, "m"))) != before


def check(repository: Path, runtime: Runtime = IN_CONTAINER, *models: str) -> list[str]:
    said: list[str] = []
    wanted = deployment(repository, *(models or find_site_models(repository)))
    check_site(wanted, site_models(wanted), runtime, said.append)
    return [line for line in said if not line.startswith("looking into")]


def failed(repository: Path, runtime: Runtime = IN_CONTAINER) -> KitError:
    with pytest.raises(KitError) as caught:
        check(repository, runtime)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy
    return caught.value


def test_a_backend_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_model(tmp_path, "m", config=CONFIG.replace("python", "onnxruntime"))
    assert check(tmp_path) == [], "what a container has is not known"
    assert failed(tmp_path, replace(IN_CONTAINER, backends=frozenset({"python"}))).cause == (
        "model m needs backend onnxruntime, this Triton has: python"
    )


def test_a_damaged_golden_event_is_named_before_anything_is_started(tmp_path: Path) -> None:
    version = write_model(tmp_path, "m")
    (version / "golden.npz").write_text("not numpy")
    error = failed(tmp_path)
    assert error.cause == f"{version}/golden.npz: not a golden event"
    assert error.remedy == "write it anew with numpy.savez, as README.md shows"


def test_an_ensemble_of_a_model_that_is_not_served_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    failure = failed(tmp_path)
    assert failure.cause == "model e is an ensemble of m, which is not served"
    assert failure.remedy == "--models e,m"


def test_a_warm_up_that_triton_skips_is_told(tmp_path: Path) -> None:
    write_model(tmp_path, "m", config=CONFIG + 'model_warmup { name: "zeros" }')
    assert check(tmp_path) == ["warning: model m: Triton skips warm-up 'zeros': batch_size is 0"]


def test_an_environment_that_would_not_serve_is_refused(tmp_path: Path) -> None:
    names = [name for name in ENVIRONMENT if "activate" not in name]
    archive = write_archive(tmp_path / "e.tar.gz", names)
    write_model(tmp_path / "models", "m", environment=str(archive))
    assert "has no bin/activate" in failed(tmp_path / "models").cause


def test_a_stub_for_another_python_than_the_environments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = write_archive(tmp_path / "e.tar.gz")
    version = write_model(tmp_path / "models", "m", environment=str(archive))
    (version.parent / "triton_python_backend_stub").touch()
    monkeypatch.setattr(launch, "python_of_stub", lambda _program: "3.12")
    failure = failed(tmp_path / "models")
    assert failure.cause == (
        f"model m: its stub is built for Python 3.12, {archive} has Python 3.10"
    )
    monkeypatch.setattr(launch, "python_of_stub", lambda _program: "3.10")
    assert check(tmp_path / "models") == []


def test_a_stub_for_another_python_than_the_kits_environment_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = write_model(tmp_path, "m")
    (version.parent / "triton_python_backend_stub").touch()
    monkeypatch.setattr(launch, "python_of_stub", lambda _program: "3.12")
    assert failed(tmp_path).cause == (
        "model m: its stub is built for Python 3.12, the kit's environment, in which it is to "
        "run, has Python 3.11"
    )


def test_what_lies_beside_a_configuration_and_is_no_stub_is_named(tmp_path: Path) -> None:
    version = write_model(tmp_path, "m")
    (version.parent / "triton_python_backend_stub").write_text("#!/bin/sh\n")
    failure = failed(tmp_path)
    assert failure.cause.endswith(
        "triton_python_backend_stub: not a stub of Triton's Python backend (it is linked to no "
        "libpython)"
    )


def test_an_environment_whose_python_cannot_be_told_is_served_with_a_warning(
    tmp_path: Path,
) -> None:
    archive = write_archive(tmp_path / "e.tar.gz", ["bin/activate"])
    write_model(tmp_path / "models", "m", environment=str(archive))
    assert check(tmp_path / "models") == [
        f"warning: model m: the Python of {archive} is not to be told"
    ]


def test_a_folder_with_blanks_is_refused_where_triton_is_given_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "their env"
    with tarfile.open(write_archive(tmp_path / "e.tar.gz")) as tar:
        tar.extractall(folder, filter="data")
    write_model(tmp_path / "models", "m", environment=str(folder))
    on_host = replace(FITTING, in_container=False)
    assert "cannot use a path with blanks" in failed(tmp_path / "models", on_host).cause
    assert check(tmp_path / "models", FITTING) == []


def test_a_stub_for_the_environments_python_is_put_beside_the_model(
    tmp_path: Path, cache: Path
) -> None:
    archive = write_archive(tmp_path / "e.tar.gz")
    write_model(tmp_path / "models", "m", environment=str(archive))
    release = find_release("24.10")
    root = distribution_folder(cache / "numlkit", release, "3.10")
    (root / "lib").mkdir(parents=True)
    (root / "lib" / "libcudart-0.so").touch()
    wanted = deployment(tmp_path / "models", "m")
    (model,) = site_models(wanted)
    staged = stage_site_model(wanted, model, IN_CONTAINER, THE_HOST)
    assert staged.stub is not None
    assert staged.stub.program == root / "backends/python/triton_python_backend_stub"
    assert [path.name for path in staged.stub.libraries] == [
        "libcudart-0.so",
        "libpython3.10.so.1.0",
    ]
    assert stage_site_model(wanted, model, FITTING, THE_HOST).stub is None


def test_a_view_knows_only_what_is_mounted() -> None:
    with pytest.raises(KeyError):
        View(((Path("/a"), Path("/b")),)).of(Path("/ab/c"))
