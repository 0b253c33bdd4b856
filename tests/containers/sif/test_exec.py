"""``exec`` of the .sif, by someone with nothing but Apptainer, and from an unpacked image."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from deploy.host.programs import run
from tests.containers.sif.conftest import Host
from tests.kit import until

ASK = """import os, urllib.request
print(urllib.request.urlopen(os.environ["NUML_HTTP_URL"] + "/v2/models/nugraph3/ready").status)"""


def _servers(of: str) -> list[int]:
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if any(of in word for word in p.info["cmdline"] or [])]


def test_a_command_in_the_image_asks_its_own_server(host: Host, sif: Path) -> None:
    python = "/opt/numl/env/bin/python"
    done = host.run("apptainer", "run", sif, "exec", "--", python, "-c", f"{ASK}\nexit(7)")
    assert (done.returncode, done.stdout) == (7, "200\n"), done.stderr
    assert _servers("--id=numl-job-") == []


@pytest.fixture(scope="module")
def unpacked(sif: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cvmfs") / "numl"
    run(["apptainer", "build", "--sandbox", folder, sif], failed="cannot unpack")
    return folder


@pytest.mark.parametrize("form", ["sif", "unpacked"])
def test_a_command_outside_of_the_image_asks_a_server_in_it(
    host: Host, form: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    image: Path = request.getfixturevalue(form)
    program, fcl = tmp_path / "numl-exec", tmp_path / "job.fcl"
    for folder in (tmp_path, *tmp_path.parents[:2], image.parent):
        folder.chmod(0o755)
    with program.open("wb") as file:
        words = host.words("apptainer", "exec", image, "cat", "/opt/numl/bin/exec")
        subprocess.run(words, cwd="/", stdout=file, check=True)
    fcl.write_text("physics.producers.ng.TritonConfig: {}\n")
    lar = host.words("python3", program, "--image", image, "--fcl", fcl, "--")
    done = subprocess.run([*lar, "cat", fcl], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'ng.TritonConfig.serverURL: "127.0.0.1:' in done.stdout
    assert _servers("--id=numl-job-") == []


def test_a_job_that_is_killed_takes_its_server_with_it(host: Host, sif: Path) -> None:
    words = host.words("apptainer", "run", sif, "exec", "--", "sh", "-c", "echo begun; sleep 1000")
    before = set(Path("/dev/shm").iterdir())
    process = subprocess.Popen(words, cwd="/", stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGKILL)
    process.wait()

    def gone() -> bool:
        new = [p for p in Path("/dev/shm").glob("numlkit-*") if p not in before]
        return not _servers("--id=numl-job-") and not new

    until(gone, "all gone")
