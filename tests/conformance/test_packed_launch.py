"""A stock image of Triton with the packed environment beside it.

Debian with a Triton, a Python and nothing else stands in the place of NVIDIA's image, which has
15 GB: as in that one the stub is for another Python than the environment's.
"""

import os
import secrets
import subprocess
import tarfile
from pathlib import Path

import psutil
import pytest

from deploy.artefacts.context import triton_layer
from deploy.artefacts.docker_client import connect
from deploy.artefacts.image import debian_name, ensure_base
from deploy.deployment.deployment import Deployment
from deploy.engines.container import STOCK_LABEL
from deploy.engines.instance import scratch_folder
from deploy.engines.resolved import Resolved
from deploy.engines.server import living_stubs
from deploy.triton.distribution import ensure_distribution
from deploy.triton.release import DEFAULT
from tests.environments import ignore
from tests.kit import until

MODELS = ("--models", "nugraph2,nugraph3", "--instances", "1")


def packed_deployment(pytestconfig: pytest.Config) -> Resolved:
    triton = pytestconfig.getoption("--triton") or DEFAULT
    return Resolved(Deployment(engine="docker", env="packed", triton=triton))


def python_layer(archive: Path, path: Path) -> None:
    """Write a Python in /usr: the packed environment's, without its packages."""
    python = f"python{archive.name.split('-py')[1].partition('-')[0]}"
    with tarfile.open(archive) as packed, tarfile.open(path, "w") as layer:
        for member in packed:
            words = member.name.split("/")
            of_python = words[:2] == ["lib", python] and "site-packages" not in words
            a_library = words[0] == "lib" and len(words) == 2 and ".so" in words[1]
            if of_python or a_library or words == ["bin", python]:
                member.name = "usr/" + member.name.replace(f"bin/{python}", "bin/python3")
                layer.addfile(member, packed.extractfile(member) if member.isreg() else None)


@pytest.fixture(scope="session")
def stock_image(tmp_path_factory, pytestconfig):
    """The stand-in, in the Docker engine."""
    deployment = packed_deployment(pytestconfig)
    release = deployment.release
    client, tag = connect(), f"numlkit-test/stock:{secrets.token_hex(4)}"
    name = debian_name(release.glibc)
    base = ensure_base(client, name=name, digest=None, say=ignore)
    distribution = ensure_distribution(release, release.python, ignore)
    folder = tmp_path_factory.mktemp("stock")
    triton_layer(distribution, folder / "triton.tar", base="slim", say=ignore)
    python_layer(deployment.archive, folder / "python.tar")
    (folder / "Dockerfile").write_text(
        f"FROM {base.reference}\n"
        "ADD triton.tar python.tar /\n"
        f"LABEL {STOCK_LABEL}={release.server}\n"
    )
    client.images.build(path=str(folder), tag=tag, rm=True)
    yield tag
    client.images.remove(tag, force=True)
    client.close()


@pytest.fixture(scope="session")
def stock(engine, request, tmp_path_factory):
    """The stand-in, as the engine takes it."""
    if engine == "local":
        pytest.skip("a stock image is for engines with a container")
    image: str = request.getfixturevalue("stock_image")
    if engine == "docker":
        return image
    sif = tmp_path_factory.mktemp("images") / "stock.sif"
    fast = ("--mksquashfs-args", "-Xcompression-level 1")
    command = ["apptainer", "build", *fast, str(sif), f"docker-daemon:{image}"]
    subprocess.run(command, check=True, capture_output=True)
    return str(sif)


@pytest.fixture(scope="module")
def packed(kit, stock):
    yield kit.up("packed", "--env", "packed", "--image", stock, *MODELS)
    kit.end("packed")


def test_all_models_answer_rightly_from_the_one_environment_that_was_extracted(kit, packed):
    status = kit.json("status", "--name", "packed")
    assert status["ok"], status
    assert kit.json("smoke", "--name", "packed")["ok"]
    stubs = living_stubs(psutil.Process(packed["server"]["pid"]))
    assert {stub.model for stub in stubs} == {"nugraph2", "nugraph3"}
    prefixes = {psutil.Process(s.process.pid).environ()["CONDA_PREFIX"] for s in stubs}
    assert len(prefixes) == 1
    assert prefixes.pop().startswith("/tmp/python_env_")


def test_a_killed_process_is_replaced(kit, packed):
    stubs = living_stubs(psutil.Process(packed["server"]["pid"]))
    os.kill(stubs[0].process.pid, 9)

    def healed() -> bool:
        return kit.noted("packed")["heals"] == 1 and kit.json("status", "--name", "packed")["ok"]

    until(healed, "the healing")


def test_a_killed_server_extracts_it_anew(kit, packed):
    os.kill(kit.noted("packed")["server"]["pid"], 9)

    def restarted() -> bool:
        restarts = kit.noted("packed")["restarts"]
        return restarts == 1 and kit.json("status", "--name", "packed")["ok"]

    until(restarted, "the restart")
    assert kit.json("smoke", "--name", "packed")["ok"]


def test_a_person_is_told_what_the_extraction_costs(kit, stock, packed):
    done = kit.run("up", "--name", "packed", "--env", "packed", "--image", stock, *MODELS)
    assert done.returncode == 0, done.stderr
    assert "ready in " in done.stdout
    assert "the kit's image" in done.stdout


def test_nothing_of_it_is_left_when_it_is_stopped(kit, packed):
    scratch = kit.noted("packed")["scratch"]
    assert kit.down("packed")["stopped"] == ["packed"]
    assert not kit.leftovers("packed", scratch)
    assert not scratch_folder(kit.folder("packed")).exists()


def test_without_an_image_the_command_that_fetches_nvidias_is_told(kit, stock):
    answer = kit.json("up", "--name", "own", "--env", "packed", *MODELS, "--dry-run")
    remedies = {"docker": f"docker pull {kit.triton or 'nvcr.io/'}", "apptainer": "apptainer pull "}
    assert answer["status"] == 1
    assert answer["remedy"].startswith(remedies[kit.engine])


def test_an_archive_that_is_cut_off_is_refused_before_anything_starts(
    kit, stock, tmp_path, pytestconfig
):
    cut = tmp_path / "cut.tar.gz"
    with packed_deployment(pytestconfig).archive.open("rb") as whole:
        cut.write_bytes(whole.read(20_000_000))
    answer = kit.json(
        "up", "--name", "cut", "--env", "packed", "--image", stock, "--archive", str(cut)
    )
    assert answer["status"] == 1
    assert answer["error"].startswith(f"execution environment {cut} is cut off or damaged: ")
    assert not (kit.folder("cut") / "server.log").exists()
