"""The benchmarks as commands: what ends them, and what they say when something is wrong."""

import importlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from deploy.host.errors import KitError
from scripts import (
    benchmark,
    benchmark_bulk,
    benchmark_cpp,
    benchmark_gallery,
    check_campaign,
    plan_campaign,
)
from scripts.benchmarks.tables import Table

# Those that start servers.
SCRIPTS = (
    *("benchmark", "benchmark_build", "benchmark_bulk", "benchmark_gallery", "benchmark_load"),
    "check_campaign",
)
ENDS = (signal.SIGTERM, signal.SIGHUP)


@pytest.fixture(autouse=True)
def kept_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (*ENDS, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_terminal_that_is_closed_ends_what_starts_servers_in_order(name, monkeypatch):
    script = importlib.import_module(f"scripts.{name}")
    monkeypatch.setattr(script, "carry_out", lambda _work, _console: 0)
    for number in ENDS:
        signal.signal(number, signal.SIG_DFL)
    assert script.main([]) == 0
    for number in ENDS:
        assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)


def test_a_short_look_at_memory_has_a_slope(monkeypatch):
    given = {}

    def told(growths: object, **facts: int) -> dict[str, int]:
        given.update(facts)
        return given

    monkeypatch.setattr(benchmark, "BenchmarkEngine", lambda _: SimpleNamespace(prepare=print))
    monkeypatch.setattr(benchmark, "benchmark_server", lambda *_: nullcontext())
    monkeypatch.setattr(benchmark, "watch_memory", lambda *_, **__: [])
    monkeypatch.setattr(benchmark, "events_of_size", lambda *_: [{}])
    monkeypatch.setattr(benchmark, "memory_document", told)
    monkeypatch.setattr(benchmark, "memory_table", lambda _: Table("", (), []))
    assert benchmark.main(["memory", "--quick", "--models", "nugraph3"]) == 0
    assert (given["settled"], given["count"]) == (250, 500)  # 20 events lie between two looks


def test_releases_that_would_have_no_events_to_answer_are_not_started(capsys):
    assert benchmark.main(["releases", "--loaded-hits"]) == 2
    assert capsys.readouterr().err.startswith("error: releases answer the events of --loaded-hits")


def test_a_bulk_run_whose_command_fails_says_which(monkeypatch, tmp_path, capsys):
    failed = subprocess.CalledProcessError(1, ["numlkit", "infer", "--engine", "slurm"])
    monkeypatch.setattr(benchmark_bulk, "measure", Mock(side_effect=failed))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    assert benchmark_bulk.main(["--json", str(tmp_path / "run.json")]) == 1
    said = "error: numlkit infer --engine ... has failed, with exit status 1\n"
    assert capsys.readouterr().err == said


def test_a_bulk_run_on_one_core_is_refused_before_anything_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.setattr(benchmark_bulk, "measure", pytest.fail)
    assert benchmark_bulk.main([]) == 1
    assert capsys.readouterr().err.startswith("error: one core cannot hold ")


CLIENT = """\
import sys
print(flush=True); sys.stdin.readline()
print(float(sys.argv[-1]), flush=True)
"""


def test_as_many_requests_are_counted_of_python_clients_as_they_send(monkeypatch):
    monkeypatch.setattr(benchmark_cpp, "_CLIENT", CLIENT)
    # Each says as its CPU time how many it was told to send: 13 of 100, of 104 in all.
    _, cpu_ms = benchmark_cpp.python_clients("url", "model", Path("event.h5"), 100)
    assert cpu_ms == 1000


def test_a_missing_program_is_an_error_in_a_line(tmp_path, capsys):
    assert benchmark_cpp.main([str(tmp_path / "numl-label"), "--rounds", "1"]) == 1
    said = f"error: {tmp_path}/numl-label: No such file or directory\n"
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    ("script", "option", "value", "wanted"),
    [
        (benchmark, "--seed", "-1", "a number from 0 to 2147483647"),
        (benchmark, "--seed", "x", "a number from 0 to 2147483647"),
        (benchmark_cpp, "--rounds", "0", "a number from 1 to 1000000"),
        *(
            (plan_campaign, "--spread", value, "a number from 0 to 10")
            for value in ("nan", "inf", "-1", "11", "x")
        ),
    ],
)
def test_a_number_that_cannot_be_is_a_usage_error(script, option, value, wanted, capsys):
    with pytest.raises(SystemExit):
        script.parser().parse_args([f"{option}={value}"])
    assert f"argument {option}: {value!r} is not {wanted}" in capsys.readouterr().err


def test_rows_too_short_to_tell_a_rate_are_a_usage_error(capsys):
    with pytest.raises(SystemExit):
        check_campaign.parser().parse_args(["--seconds=1"])
    assert "'1' is less than 4 s" in capsys.readouterr().err


def test_why_the_gallerys_server_did_not_start_is_told_and_no_other_one_is_stopped(monkeypatch):
    told = {"ok": False, "error": "no room", "remedy": "make some"}
    asked = []

    def numlkit(words: list[str], **_: object) -> SimpleNamespace:
        asked.append(words[3])
        text = "error: no room\n  try: make some\n"
        return SimpleNamespace(returncode=1, stdout=json.dumps(told), stderr=text)

    monkeypatch.setattr(benchmark_gallery.subprocess, "run", numlkit)
    with (
        pytest.raises(KitError, match="no room") as caught,
        benchmark_gallery._serving(["gat"], SimpleNamespace(line=print)),
    ):
        pytest.fail("it has started")
    assert (caught.value.remedy, asked) == ("make some", ["up"])
    assert str(os.getpid()) in benchmark_gallery.NAME
