"""What a watch beside a server tells Prometheus of its models."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from numl_serving.health import main
from numl_serving.watch import Watch, run
from played_triton import GOLDEN

from numl_formats.watched import STATES


def found(watch: Watch) -> dict[str, str]:
    """Check everything once; return the state of each model, as Prometheus sees it."""
    watch.look()
    text = watch.metrics()
    pattern = r'numl_smoke_state{server="pod-1",model="(.*)",state="(.*)"} (\d)'
    rows = re.findall(pattern, text)
    assert len(rows) == len(STATES) * len({model for model, _, _ in rows})
    return {model: state for model, state, value in rows if value == "1"}


@pytest.fixture
def watch(triton, repository):
    return Watch("pod-1", "127.0.0.1", triton.port, repository)


def value(watch: Watch, name: str, labels: str = "") -> float:
    [number] = re.findall(rf"^numl_smoke_{name}{{.*{labels}}} (\S+)$", watch.metrics(), re.M)
    return float(number)


def test_right_answers_are_told_with_their_time(watch):
    begun = time.time()
    assert found(watch) == {"nugraph2": "right", "nugraph3": "right"}
    assert value(watch, "server_ready") == 1
    assert value(watch, "last_check_timestamp_seconds") >= begun
    assert value(watch, "last_right_timestamp_seconds", 'model="nugraph3"') >= begun
    assert 0 < value(watch, "latency_seconds", 'model="nugraph3"') < 10


@pytest.mark.parametrize(
    ("state", "happens"),
    [
        ("wrong", lambda t: t.answer.update(x_semantic_u=GOLDEN["x_semantic_u"] + 1)),
        ("failing", lambda t: setattr(t, "error", "Stub process is not healthy.")),
        ("unready", lambda t: t.ready.update(nugraph2=False, nugraph3=False)),
        ("unreachable", lambda t: setattr(t, "silent", 1)),
    ],
)
def test_what_goes_wrong_is_told_counted_and_forgotten_when_it_is_right_again(
    triton, watch, state, happens, capsys
):
    found(watch)
    before = value(watch, "last_right_timestamp_seconds", 'model="nugraph2"')
    happens(triton)
    assert found(watch) == {"nugraph2": state, "nugraph3": state}
    assert value(watch, "last_right_timestamp_seconds", 'model="nugraph2"') == before
    assert value(watch, "server_ready") == (state != "unreachable")
    triton.answer, triton.error, triton.silent = dict(GOLDEN), None, 0
    triton.ready = dict.fromkeys(triton.ready, True)
    assert set(found(watch).values()) == {"right"}
    labels = f'model="nugraph2",state="{state}"'
    assert value(watch, "checks_total", labels) == 1
    said = [line for line in capsys.readouterr().out.splitlines() if "nugraph2" in line]
    assert [line.split()[2] for line in said] == ["right", state, "right"]


def test_a_site_s_own_model_is_not_judged(triton, repository, watch):
    (repository / "classifier" / "1").mkdir(parents=True)
    (repository / "classifier" / "config.pbtxt").touch()
    triton.ready["classifier"] = True
    assert found(watch)["classifier"] == "unjudged"


def test_a_golden_answer_that_is_being_replaced_judges_nobody(repository, watch):
    (repository / "nugraph2" / "1" / "golden.npz").unlink()
    assert found(watch) == {"nugraph2": "unjudged", "nugraph3": "right"}


def test_a_server_that_starts_and_models_that_are_yet_to_come_raise_no_alert(
    triton, repository, watch
):
    triton.silent = 1
    assert found(watch) == {}
    assert "server_ready{" not in watch.metrics()
    shutil.move(repository / "nugraph3", repository.parent / "away")
    assert found(watch) == {"nugraph2": "right"}


def test_a_model_that_is_being_loaded_has_not_been_without_a_right_answer_for_long(triton, watch):
    begun = time.time()
    triton.ready["nugraph3"] = False
    assert found(watch)["nugraph3"] == "unready"
    assert value(watch, "last_right_timestamp_seconds", 'model="nugraph3"') >= begun


def test_a_fault_of_its_own_is_said_and_ends_neither_watch_nor_pod(watch, monkeypatch, capsys):
    found(watch)
    checked = value(watch, "last_check_timestamp_seconds")

    def broken(*_words: object) -> None:
        raise RuntimeError("out of ideas")

    with monkeypatch.context() as patch:
        patch.setattr("numl_serving.watch.judge", broken)
        assert found(watch) == {}
    assert value(watch, "last_check_timestamp_seconds") == checked
    assert capsys.readouterr().out.endswith("watch: RuntimeError: out of ideas\n")
    assert set(found(watch).values()) == {"right"}


def test_the_command_exports_until_it_is_told_to_end(triton, repository):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "numl_serving.health", "--port", str(triton.port)]
    flags = ["--watch", "0.05", "--metrics", str(port), str(repository)]
    process = subprocess.Popen([*command, *flags], env={**os.environ, "NUML_LISTEN": "127.0.0.1"})
    try:
        text, deadline = "", time.monotonic() + 60
        while 'state="right"} 1' not in text and time.monotonic() < deadline:
            time.sleep(0.05)
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
                    text = answer.read().decode()
            except OSError:
                continue
        assert f'numl_smoke_server_ready{{server="{socket.gethostname()}"}} 1' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_it_ends_also_if_the_signal_comes_where_something_is_finalized(repository, monkeypatch):
    class Finalized:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGTERM)

    def look(_watch):
        looks.append(1)
        assert len(looks) < 9
        Finalized()

    looks: list[int] = []
    monkeypatch.setattr(Watch, "look", look)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        assert run("h", 1, repository, every=0, listen="127.0.0.1", metrics_port=0) == 0
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert len(looks) == 1


def test_a_port_that_is_taken_is_said(repository, capsys):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["--watch", "1", "--metrics", str(port), str(repository)]) == 2
    assert f"watch: cannot listen on 127.0.0.1 port {port}: " in capsys.readouterr().out
