"""Builds of the .sif that are interrupted, fail, or are an ordinary user's."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from deploy.host.errors import BuildError
from deploy.host.files import sha256_of
from deploy.host.paths import CHECKOUT, cache_folder
from tests.containers.conftest import SifOfImage
from tests.containers.sif.conftest import build_without_docker
from tests.programs import in_child, run_program
from tests.views import ORDINARY


@pytest.fixture
def own_image(engine, image, tags):
    """An image from which no other test makes containers."""
    tag = tags("interrupted")
    recipe = f"FROM {image.tag}\nLABEL interrupted={tag}\n"
    engine.images.build(fileobj=io.BytesIO(recipe.encode()), tag=tag, rm=True)
    return tag


def test_an_interrupted_build_leaves_nothing(engine, own_image, tmp_path):
    out = tmp_path / "numl.sif"
    script = (
        "from pathlib import Path\n"
        "from deploy.artefacts.docker_client import connect\n"
        "from deploy.artefacts.sif import SifBuilder\n"
        "from deploy.artefacts.tools import find_tools\n"
        "builder = SifBuilder(find_tools('gzip'), 0, print)\n"
        f"builder.from_image(connect(), {own_image!r}, Path({str(out)!r}))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not any(
        f.stat().st_size > 1 << 17 for f in tmp_path.glob(".numlkit.numl.sif.*/numl.squashfs")
    ):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
    assert engine.containers.list(all=True, filters={"ancestor": own_image}) == []


def test_its_benchmark_measures_the_build_and_the_start_also_of_one_for_hosts_without_zstd(
    image, tmp_path
):
    """A start ends with the reference output of every model."""
    words = [sys.executable, "scripts/benchmark_build.py", image.tag, "--rounds", "1"]
    words += ["--compressor", "gzip", "--apptainer-rounds", "0"]
    flags = ["--folder", tmp_path, "--json", tmp_path / "run.json"]
    done = run_program([*words, *flags], cwd=CHECKOUT, timeout=300)
    assert done.returncode == 0, done.stderr
    run = json.loads((tmp_path / "run.json").read_text())
    assert run["compressor"] == "gzip"
    assert set(run["build"]) == {"ours", "docker export to disk"}
    assert set(run["start"]) == {"from the .sif", "from the image"}
    assert all(len(each["seconds"]) == 1 for each in (run["build"] | run["start"]).values())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_a_full_disk_is_named_and_nothing_is_left(build, tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", small], check=True)
    try:
        with pytest.raises(BuildError, match="no space left on device") as caught:
            build(small / "numl.sif")
        assert caught.value.remedy
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_an_image_that_is_not_there_is_named_and_an_older_sif_stays(engine, tools, tmp_path):
    out = tmp_path / "numl.sif"
    out.write_text("older")
    with pytest.raises(BuildError) as caught:
        SifOfImage(engine, "numlkit-test/none:none", tools)(out)
    assert caught.value.cause == "the Docker engine has no image numlkit-test/none:none"
    assert list(tmp_path.iterdir()) == [out]
    assert out.read_text() == "older"


def test_models_that_do_not_answer_are_not_built_into_one(context, ingredients, tools, folder):
    broken = folder / "broken"
    shutil.copytree(context, broken, copy_function=os.link)
    weights = broken / "models" / "cpu" / "nugraph3" / "1" / "weights.safetensors"
    weights.unlink()
    weights.write_bytes(b"broken")
    out = folder / "broken.sif"
    try:
        with pytest.raises(BuildError, match=r"^the models do not work in the container: .*3.*: "):
            build_without_docker(broken, ingredients, tools, out)
        assert not out.exists()
        assert list(folder.glob(".broken.sif*")) == []
    finally:
        shutil.rmtree(broken)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be taken on by root only")
def test_an_ordinary_user_builds_the_same_bytes_without_docker(
    sif_without_docker, context, ingredients, tools, ordinary_user, monkeypatch
):
    account = ordinary_user.account
    with tempfile.TemporaryDirectory(prefix="numlkit-test-home-") as name:
        home = Path(name)
        # What this user can read: the checkout and the caches are perhaps root's.
        readable = home / "context"
        shutil.copytree(context, readable)
        definition = home / "numl.def"
        shutil.copy(CHECKOUT / "containers" / "numl.def", definition)
        monkeypatch.setattr("deploy.artefacts.sif.DEFINITION", definition)
        # mmdebstrap wants subordinate user ids, which not every user has.
        shutil.copytree(cache_folder() / "bases", home / "cache" / "numlkit" / "bases")
        for path in (home, *home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        out = home / "numl.sif"

        def as_that_user() -> None:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            os.chdir("/")
            os.environ |= {"HOME": name, "XDG_CACHE_HOME": f"{name}/cache", "USER": ORDINARY}
            os.environ["SOURCE_DATE_EPOCH"] = "1"
            build_without_docker(readable, ingredients, tools, out)

        assert in_child(as_that_user) == 0
        assert sha256_of(out) == sha256_of(sif_without_docker)
