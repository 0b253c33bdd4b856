"""What a job's command is told: its FHiCL file, and how it reaches the server."""

import argparse

import pytest

from numl_job.options import Job, add_job_options

GRPC, HTTP = "grpc://127.0.0.1:1", "http://127.0.0.1:2"
PROXIES = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


@pytest.mark.parametrize("given", ["job.fcl", "./job.fcl"])
def test_the_fhicl_file_is_found_among_the_words_however_it_is_written(
    given, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "job.fcl").write_text("physics.producers.ng.TritonConfig: {}\n")
    flags = argparse.ArgumentParser()
    add_job_options(flags)
    job = Job.of(flags.parse_args(["--fcl", given]), ["lar", "-c", "./job.fcl", "-n", "1"])
    folder = tmp_path / "remains"
    folder.mkdir()
    words, variables = job.told(folder, GRPC, HTTP)
    assert words == ["lar", "-c", f"{folder}/job.fcl", "-n", "1"]
    assert variables["NUML_FCL"] == f"{folder}/job.fcl"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({}, {"no_proxy": "127.0.0.1"}),
        ({"no_proxy": "a.org,.b.org"}, {"no_proxy": "a.org,.b.org,127.0.0.1"}),
        ({"NO_PROXY": "a.org"}, {"no_proxy": "a.org,127.0.0.1"}),
        ({"no_grpc_proxy": "a.org"}, {"no_proxy": "127.0.0.1", "no_grpc_proxy": "a.org,127.0.0.1"}),
        ({"no_proxy": "*"}, {"no_grpc_proxy": "127.0.0.1"}),
        ({"NO_PROXY": "*"}, {"no_grpc_proxy": "127.0.0.1"}),
    ],
)
def test_no_client_asks_a_proxy_for_the_server(given, told, tmp_path, monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    _, variables = Job(["true"]).told(tmp_path, GRPC, HTTP)
    assert {name: variables[name] for name in PROXIES if name in variables} == told


def test_a_comment_of_the_fhicl_file_need_not_be_utf_8(tmp_path):
    fcl, text = tmp_path / "job.fcl", b"# Andr\xe9\nphysics.producers.ng.TritonConfig: {}\n"
    fcl.write_bytes(text)
    flags = argparse.ArgumentParser()
    add_job_options(flags)
    job = Job.of(flags.parse_args(["--fcl", str(fcl)]), ["lar", "-c", str(fcl)])
    folder = tmp_path / "remains"
    folder.mkdir()
    job.told(folder, GRPC, HTTP)
    assert (folder / "job.fcl").read_bytes().startswith(text)
