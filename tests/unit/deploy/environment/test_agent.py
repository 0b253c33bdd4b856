"""The sync agent's folder: small, the same in every build, and no part of the models' packages."""

import hashlib
import subprocess
from pathlib import Path

import pytest

from deploy.environment.agent import agent_folder
from deploy.environment.environment import plan_environment
from deploy.environment.private_python import ensure_private_python
from deploy.environment.tars import tar_chunks
from tests.environments import ignore

MB = 1_000_000

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The same folder, made twice."""
    environment = plan_environment("serving")
    ensure_private_python(environment.interpreter, ignore)
    made = []
    with pytest.MonkeyPatch.context() as patch:
        for name in ("one", "another"):
            patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp(name)))
            made.append(agent_folder(environment, ignore))
            assert agent_folder(environment, ignore) == made[-1]
    return made


def test_it_is_the_same_in_every_build(folders):
    digests = {hashlib.sha256(b"".join(tar_chunks(folder))).hexdigest() for folder in folders}
    assert len(digests) == 1


def test_it_has_what_reads_a_bucket_and_no_more(folders):
    folder = folders[0]
    services = {path.name for path in (folder / "botocore" / "data").iterdir() if path.is_dir()}
    assert services == {"s3", "sts"}
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) < 30 * MB
    assert {path.name for path in folder.glob("*.dist-info")} == {
        line.replace("==", "-").split(" ")[0].replace("python-", "python_") + ".dist-info"
        for line in Path("envs/numl/locks/sync.txt").read_text().splitlines()
        if "==" in line
    }


def test_it_runs_from_a_folder_that_cannot_be_written_to(folders):
    python = plan_environment("serving").interpreter.executable
    before = sorted(folders[0].rglob("*"))
    command = [python, "-I", folders[0], "--once", "s3://http://127.0.0.1:9/models", "/dev/null/x"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert (done.returncode, done.stdout) == (
        2,
        "sync: nothing is verified: no key is given (--verify)\n"
        "sync: /dev/null/x/repository: Not a directory\n",
    ), done.stderr
    # Everything that it imports was compiled before.
    assert sorted(folders[0].rglob("*")) == before
