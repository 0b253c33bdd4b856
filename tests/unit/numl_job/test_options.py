"""What a job's command is told: its FHiCL file, and how it reaches the server."""

import argparse

import pytest

from numl_job.options import Job, add_job_options

GRPC, HTTP = "grpc://127.0.0.1:1", "http://127.0.0.1:2"
PROXIES = ("no_proxy", "NO_PROXY", "no_grpc_proxy")


@pytest.fixture
def told(tmp_path, monkeypatch):
    """Tell a job of the FHiCL file that an option names; its copy is in ``remains``."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "remains").mkdir()
    flags = argparse.ArgumentParser()
    add_job_options(flags)
    return lambda given, words: Job.of(flags.parse_args(["--fcl", given]), words).told(
        tmp_path / "remains", GRPC, HTTP
    )


@pytest.mark.parametrize("given", ["job.fcl", "./job.fcl"])
def test_the_fhicl_file_is_found_among_the_words_however_it_is_written(given, told, tmp_path):
    (tmp_path / "job.fcl").write_text("physics.producers.ng.TritonConfig: {}\n")
    words, variables = told(given, ["lar", "-c", "./job.fcl", "-n", "1"])
    copy = f"{tmp_path}/remains/job.fcl"
    assert words == ["lar", "-c", copy, "-n", "1"]
    assert variables["NUML_FCL"] == copy


@pytest.mark.parametrize(
    ("given", "added"),
    [
        ({}, {"no_proxy": "127.0.0.1"}),
        ({"no_proxy": "a.org,.b.org"}, {"no_proxy": "a.org,.b.org,127.0.0.1"}),
        ({"NO_PROXY": "a.org"}, {"no_proxy": "a.org,127.0.0.1"}),
        ({"no_grpc_proxy": "a.org"}, {"no_proxy": "127.0.0.1", "no_grpc_proxy": "a.org,127.0.0.1"}),
        ({"no_proxy": "*"}, {"no_grpc_proxy": "127.0.0.1"}),
        ({"NO_PROXY": "*"}, {"no_grpc_proxy": "127.0.0.1"}),
    ],
)
def test_no_client_asks_a_proxy_for_the_server(given, added, tmp_path, monkeypatch):
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    _, variables = Job(["true"]).told(tmp_path, GRPC, HTTP)
    assert {name: variables[name] for name in PROXIES if name in variables} == added


def test_a_comment_of_the_fhicl_file_need_not_be_utf_8(told, tmp_path):
    text = b"# Andr\xe9\nphysics.producers.ng.TritonConfig: {}\n"
    (tmp_path / "job.fcl").write_bytes(text)
    told("job.fcl", ["lar", "-c", "job.fcl"])
    assert (tmp_path / "remains" / "job.fcl").read_bytes().startswith(text)
