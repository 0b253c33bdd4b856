"""A site's own model repository: what is read of it, and what a launch stages."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from google.protobuf import text_format

from deploy.deployment.deployment import Deployment, find_site_models
from deploy.engines.resolved import Resolved
from deploy.engines.site import stage_site_model
from deploy.host.errors import RepositoryError
from deploy.triton.config import model_config_pb2, read_config
from deploy.triton.site import places_in_container, read_site_model
from deploy.triton.stage import stage
from tests.unit.deploy.engines.site import ENSEMBLE, FITTING, IN_CONTAINER, resolve, staged
from tests.unit.deploy.site_repository import (
    CONFIG,
    environment_parameter,
    write_archive,
    write_model,
)


def listing(folder: Path) -> list[str]:
    """Return the files in a folder, none of which may be a link."""
    found = [path for path in folder.rglob("*") if not path.is_dir()]
    assert not any(path.is_symlink() for path in folder.rglob("*"))
    return sorted(str(path.relative_to(folder)) for path in found)


def facts(folder: Path) -> dict[Path, tuple[int, int, int]]:
    """Return modes, sizes and times of change of what is in a folder."""
    stats = {path: path.stat() for path in folder.rglob("*")}
    return {path: (s.st_mode, s.st_size, s.st_mtime_ns) for path, s in stats.items()}


def test_folders_with_a_configuration_are_models(tmp_path):
    write_model(tmp_path, "b")
    write_model(tmp_path, "a")
    (tmp_path / "environments").mkdir()
    (tmp_path / "README").touch()
    assert find_site_models(tmp_path) == ("a", "b")


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch, lambda path: None])
def test_what_is_no_repository_is_refused(tmp_path, make):
    make(tmp_path / "models")
    with pytest.raises(RepositoryError, match=f"{tmp_path / 'models'}"):
        find_site_models(tmp_path / "models")


def test_what_is_served_is_the_versions_and_all_that_lies_beside_them_or_is_linked(tmp_path):
    both = "version_policy { specific { versions: [1, 2] } }"
    version = write_model(tmp_path / "models", "m", config=CONFIG + both)
    for name in ("assets/weights.bin", "__pycache__/model.pyc", "../labels.txt", "../0/old.py"):
        (version / name).parent.mkdir(exist_ok=True)
        (version / name).touch()
    elsewhere = tmp_path / "releases" / "v7" / "model.py"
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    (version.parent / "2").symlink_to(elsewhere.parent)
    (version.parent / "weights.bin").symlink_to(elsewhere)
    model = read_site_model(tmp_path / "models", "m")
    assert model.versions == (1, 2)
    assert model.files == {
        "1/assets/weights.bin": version / "assets/weights.bin",
        "1/model.py": version / "model.py",
        "2/model.py": elsewhere,
        "labels.txt": version.parent / "labels.txt",
        "weights.bin": elsewhere,
    }
    assert (model.environment, model.stub) == (None, None)


@pytest.mark.parametrize("taken", ["007", "v2"])
def test_a_folder_that_triton_takes_for_no_version_is_none(tmp_path, taken):
    (write_model(tmp_path, "m").parent / taken).mkdir()
    assert read_site_model(tmp_path, "m").versions == (1,)


@pytest.mark.parametrize(
    ("harm", "path", "cause"),
    [
        (lambda path: path.symlink_to(".."), "1/link", "a link to "),
        (lambda path: path.symlink_to("nothing"), "1/link", "a link to "),
        (Path.mkdir, "2_old", "Triton takes it for version 2$"),
        (Path.mkdir, "3rdparty", "Triton takes it for version 3$"),
        (Path.mkdir, "-1", "Triton takes it for version -1$"),
        (Path.touch, "1/weights.pt", "you may not read it$"),
    ],
)
def test_what_cannot_be_copied_or_taken_for_what_it_is_is_named(
    tmp_path, monkeypatch, harm, path, cause
):
    """That a file may not be read is played, as root may read all."""
    harmed = write_model(tmp_path, "m").parent / path
    harm(harmed)
    monkeypatch.setattr(
        "deploy.triton.site.os.access",
        lambda file, mode: file.suffix != ".pt" or mode != os.R_OK,
    )
    with pytest.raises(RepositoryError, match=f"^{harmed}: {cause}"):
        read_site_model(tmp_path, "m")


@pytest.mark.parametrize(("config", "cause"), [
    ("nonsense", "not a model configuration"),
    ('name: "other"', "names its model 'other'"),
    ("version_policy { specific { versions: [7] } }",
     "its config.pbtxt selects none of its versions"),
    ('backend: "python"' + environment_parameter("envs/e.tar.gz"),
     "EXECUTION_ENV_PATH 'envs/e.tar.gz' is relative; Triton would resolve it from the "
     "folder it was started in"),
    ('backend: "python"' + environment_parameter("s3://bucket/e.tar.gz"),
     "EXECUTION_ENV_PATH 's3://bucket/e.tar.gz' is relative"),
    ('backend: "python"' + environment_parameter("/nowhere/e.tar.gz"),
     r"EXECUTION_ENV_PATH '/nowhere/e.tar.gz' does not exist \(/nowhere/e.tar.gz\)"),
])  # fmt: skip
def test_a_model_that_cannot_be_served_is_named(tmp_path, config, cause):
    write_model(tmp_path, "m", config=config)
    with pytest.raises(RepositoryError, match=cause) as caught:
        read_site_model(tmp_path, "m")
    assert "\n" not in caught.value.cause


NAMELESS = CONFIG.replace('backend: "python"\n', "")


@pytest.mark.parametrize(
    "config",
    [CONFIG, NAMELESS, NAMELESS + 'default_model_filename: "model.py"\n'],
    ids=["named", "nameless", "nameless, with its file"],
)
def test_a_model_py_without_an_environment_is_a_python_model_in_the_kits(tmp_path, config):
    write_model(tmp_path, "m", config=config)
    wanted = resolve(tmp_path, "m")
    (model,) = wanted.site
    assert (model.runs_in_kits, wanted.complete, wanted.instances) == (True, True, {"m": 2})
    found = staged(tmp_path)
    assert (found.config.backend, found.stub) == ("python", None)
    assert found.config.parameters["EXECUTION_ENV_PATH"].string_value == "/opt/numl/env"


@pytest.mark.parametrize(("config", "file", "line"), [
    (NAMELESS, "model.onnx", 'backend: "python" for model.py'),  # which Triton would take
    (NAMELESS + 'default_model_filename: "net.py"', "net.py", 'backend: "python" for model.py'),
    (ENSEMBLE.replace('platform: "ensemble"', ""), None, 'platform: "ensemble"'),
])  # fmt: skip
def test_a_model_without_backend_that_may_be_another_than_python_is_refused(
    tmp_path, config, file, line
):
    version = write_model(tmp_path, "m", config=config)
    if file is None:
        (version / "model.py").unlink()
    else:
        (version / file).touch()
    with pytest.raises(RepositoryError, match="names neither backend nor platform") as caught:
        read_site_model(tmp_path, "m")
    assert caught.value.remedy == f"say which: {line}"


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("{folder}/shared/e.tar.gz", "shared/e.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/e.tar.gz", "models/m/e.tar.gz"),
        ("$$TRITON_MODEL_DIRECTORY/../e.tar.gz", "models/e.tar.gz"),
    ],
)
def test_an_environment_is_found_where_triton_finds_it_and_is_no_file_of_the_model(
    tmp_path, text, place
):
    write_model(tmp_path / "models", "m", environment=text.format(folder=tmp_path))
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).touch()
    model = read_site_model(tmp_path / "models", "m")
    assert model.environment == tmp_path / place
    assert list(model.files) == ["1/model.py"]


def test_the_files_of_a_model_are_copied_and_left_as_they_are(tmp_path):
    repository, archive = tmp_path / "models", write_archive(tmp_path / "their env.tar.gz")
    version = write_model(repository, "m", environment=str(archive))
    np.savez(version / "golden.npz", **{"input/x": np.ones(1), "output/y": np.ones(1)})
    (version / "assets").mkdir()
    (version / "assets" / "tables.py").touch()
    before = facts(tmp_path)
    mounted = replace(FITTING, places=places_in_container([archive]))
    stage([staged(repository, mounted)], tmp_path / "staged")
    assert listing(tmp_path / "staged") == [
        "m/1/__pycache__",
        "m/1/assets/__pycache__",
        "m/1/assets/tables.py",
        "m/1/golden.npz",
        "m/1/model.py",
        "m/config.pbtxt",
    ]
    place = environment_parameter("/opt/numl/site/environments/1-their_env.tar.gz")
    served = text_format.Parse(CONFIG + place, model_config_pb2.ModelConfig())
    assert read_config(tmp_path / "staged/m/config.pbtxt") == served
    assert {path: now for path, now in facts(tmp_path).items() if path in before} == before


def test_without_a_container_the_environment_stays_where_it_is(tmp_path):
    archive = write_archive(tmp_path / "env.tar.gz")
    write_model(tmp_path / "models", "m", environment=str(archive))
    found = staged(tmp_path / "models", FITTING)
    assert found.config.parameters["EXECUTION_ENV_PATH"].string_value == str(archive)
    assert found.copies == {"1/model.py": tmp_path / "models/m/1/model.py"}


def test_a_model_without_an_environment_needs_the_one_with_nugraph_s_own_packages(tmp_path):
    write_model(tmp_path, "m")
    assert resolve(tmp_path, "nugraph3").fitting_flavours == ("serving", "cpu")
    assert resolve(tmp_path, "nugraph3", "m").fitting_flavours == ("cpu",)
    on_gpu = Deployment(models_dir=tmp_path, models=("m",), flavour="gpu")
    assert Resolved(on_gpu).fitting_flavours == ("gpu",)


def test_an_ensemble_is_served_as_it_stands_with_its_empty_version(tmp_path):
    (tmp_path / "e" / "1").mkdir(parents=True)
    (tmp_path / "e" / "config.pbtxt").write_text(ENSEMBLE)
    wanted = resolve(tmp_path, "e")
    (model,) = wanted.site
    stage([stage_site_model(wanted, model, IN_CONTAINER)], tmp_path / "staged")
    assert (tmp_path / "staged/e/1").is_dir()
    assert read_config(tmp_path / "staged/e/config.pbtxt") == model.config


def test_environments_get_plain_names_in_a_container_each_once(tmp_path):
    inside, outside = tmp_path / "models/m/env", tmp_path / "$(rm -r *) env.tar.gz"
    assert places_in_container([inside, outside, inside]) == {
        inside: Path("/opt/numl/site/environments/1-env"),
        outside: Path("/opt/numl/site/environments/2-__rm_-r____env.tar.gz"),
    }
    with pytest.raises(RepositoryError, match="a path with a line break cannot be mounted"):
        places_in_container([tmp_path / "a\nb"])


def test_models_are_the_sites_or_the_kits_and_the_sites_take_precedence(tmp_path):
    write_model(tmp_path, "m")
    write_model(tmp_path, "nugraph3")
    wanted = resolve(tmp_path, "nugraph2", "m", "nugraph3")
    assert wanted.kit == ("nugraph2",)
    assert [model.name for model in wanted.site] == ["m", "nugraph3"]
    with pytest.raises(RepositoryError) as caught:
        _ = resolve(tmp_path, "m", "other").site
    assert caught.value.cause == f"no model 'other', neither in {tmp_path} nor among the kit's"
    assert caught.value.remedy == f"{tmp_path} has m, nugraph3"


def test_the_digest_follows_their_files_without_reading_them(tmp_path):
    version = write_model(tmp_path, "m")
    before = resolve(tmp_path, "m").digest("")
    assert resolve(tmp_path, "m").digest("") == before
    os.utime(version / "model.py", ns=(0, 0))
    assert resolve(tmp_path, "m").digest("") != before
