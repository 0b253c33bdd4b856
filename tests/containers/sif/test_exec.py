"""``exec`` of the .sif, by someone with nothing but Apptainer, and from an unpacked image."""

from __future__ import annotations

import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from deploy.host.programs import run
from tests.kit import open_to_all, until

ASK = """import os, urllib.request
print(os.environ["NUML_GRPC_URL"])
print(urllib.request.urlopen(os.environ["NUML_HTTP_URL"] + "/v2/models/nugraph3/ready").status)"""


def _servers(said: str) -> list[int]:
    """Return the processes of the server at an address that a command has printed."""
    port = re.search(r"127\.0\.0\.1:(\d+)", said)
    assert port is not None, said
    found = psutil.process_iter(["cmdline"])
    return [p.pid for p in found if f"--grpc-port={port[1]}" in (p.info["cmdline"] or [])]


def _regions(pid: int) -> list[str]:
    words = psutil.Process(pid).cmdline()
    return [w.partition("shm-region-prefix-name=")[2] for w in words if "shm-region" in w]


@pytest.mark.parametrize("host", ["ordinary"], indirect=True)
def test_a_command_in_the_image_asks_its_own_server(host, sif):
    python = "/opt/numl/env/bin/python"
    done = host.run("apptainer", "run", sif, "exec", "--", python, "-c", f"{ASK}\nexit(7)")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (7, "200"), done.stderr
    assert _servers(done.stdout) == []


@pytest.fixture(scope="module")
def unpacked(sif, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cvmfs") / "numl"
    run(["apptainer", "build", "--sandbox", folder, sif], failed="cannot unpack")
    return folder


@pytest.mark.parametrize(
    ("host", "form"), [("root", "sif"), ("ordinary", "unpacked")], indirect=["host"]
)
def test_a_command_outside_of_the_image_asks_a_server_in_it(host, form, request, tmp_path):
    image: Path = request.getfixturevalue(form)
    program, fcl = tmp_path / "numl-exec", tmp_path / "job.fcl"
    for folder in (tmp_path, image.parent):
        open_to_all(folder)
    with program.open("wb") as file:
        words = host.words("apptainer", "exec", image, "cat", "/opt/numl/bin/exec")
        subprocess.run(words, cwd="/", stdout=file, check=True)
    fcl.write_text("physics.producers.ng.TritonConfig: {}\n")
    lar = host.words("python3", program, "--image", image, "--fcl", fcl, "--")
    done = subprocess.run([*lar, "cat", fcl], cwd="/", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'ng.TritonConfig.serverURL: "127.0.0.1:' in done.stdout
    assert _servers(done.stdout) == []


@pytest.mark.parametrize("host", ["ordinary"], indirect=True)
def test_a_job_that_is_killed_takes_its_server_with_it(host, sif):
    wait = ["sh", "-c", "echo $NUML_GRPC_URL; sleep 1000"]
    words = host.words("apptainer", "run", sif, "exec", "--", *wait)
    process = subprocess.Popen(words, cwd="/", stdout=subprocess.PIPE, text=True)
    said = process.stdout.readline()
    regions = {prefix for pid in _servers(said) for prefix in _regions(pid)}
    assert regions
    process.send_signal(signal.SIGKILL)
    process.wait()
    until(lambda: not _servers(said), "the server's end")
    until(lambda: not [r for r in regions if list(Path("/dev/shm").glob(f"{r}*"))], "no regions")
