"""What the README and docs/ show of a running server, done with one."""

import shutil
import sys
from pathlib import Path

import pytest

from deploy.host.paths import CHECKOUT
from tests.commands import run_command
from tests.inputs import EVENTS
from tests.pages import PAGES, README, blocks, numlkit
from tests.programs import run_program

# As tests/integration/tls, test_alerts.py and tests/containers/supply have them.
ELSEWHERE = ("grpcs://", "--watch", "--verify")
CHANGES = ("numlkit doctor --fix",)  # as tests/integration/test_doctor.py does
ASKED = [
    line
    for line in numlkit("infer", "status", "logs", "smoke", "doctor")
    if not any(word.startswith(ELSEWHERE) for word in line.words) and str(line) not in CHANGES
]


def _client_page() -> Path:
    (page,) = (page for page in PAGES if page.name == "client.md")
    return page


@pytest.mark.parametrize("page", [README, _client_page()], ids=lambda page: page.name)
def test_the_client_that_is_shown_gets_an_answer(demo, page):
    (code,) = blocks(page, "python")
    assert "127.0.0.1:8001" in code
    code = code.replace("127.0.0.1:8001", f"127.0.0.1:{demo['ports']['grpc']}")
    done = run_program([sys.executable, "-c", code], timeout=60)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    if page == README:
        assert [line.split()[0] for line in lines] == ["u", "u", "v", "v", "y", "y"]
        assert all(0 <= int(line.strip("uvy []")) < 7 for line in lines[::2])
        assert all(0 <= float(line.strip("uvy []")) <= 1 for line in lines[1::2])
    else:
        assert [len(line.split(", ")) for line in lines] == [7, 4]


def test_the_library_labels_a_file_as_shown(demo, tmp_path):
    (page,) = (page for page in PAGES if page.name == "python.md")
    (code,) = blocks(page, "python")
    code = code.replace("127.0.0.1:8001", f"127.0.0.1:{demo['ports']['grpc']}")
    shutil.copy(EVENTS, tmp_path / "my_events.h5")
    words = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(CHECKOUT)!r})\n{code}"]
    done = run_program(words, cwd=tmp_path, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 5
    assert len(list(tmp_path.glob("event_*.png"))) == 5


@pytest.mark.parametrize("line", ASKED, ids=str)
def test_a_command_that_is_shown_does_its_work(kit, demo, tmp_path, line):
    shutil.copy(EVENTS, tmp_path / "my_events.h5")
    (tmp_path / "scripts").symlink_to(CHECKOUT / "scripts")
    (tmp_path / "deploy").symlink_to(CHECKOUT / "deploy")
    ports = demo["ports"]
    grpc = f"grpc://127.0.0.1:{ports['grpc']}"
    words = [grpc if word == "grpc://127.0.0.1:8001" else word for word in line.words[1:]]
    words = ["demo" if word in ("cpu-node", "gpvm") else word for word in words]
    if "--url" not in words and words[0] not in ("infer", "doctor"):
        words += ["--name", "demo"] if "--name" not in words else []
    if words[0] == "infer" and "--url" not in words:
        words += ["--name", "demo"]
    done = run_command(words, kit.variables, timeout=120, cwd=tmp_path)
    # What doctor finds is about this host; that it looks and tells is what the page says.
    assert done.returncode in ((0, 1) if words[0] == "doctor" else (0,)), done.stderr
    assert done.stdout
    for flag in ("--out", "--display"):
        if flag in words:
            assert (tmp_path / words[words.index(flag) + 1]).exists()


def test_events_are_simulated_as_shown(kit, tmp_path):
    out = tmp_path / "more.h5"
    done = kit.run("simulate_events", str(out), "--events", "20", script=True)
    assert done.returncode == 0, done.stderr
    assert out.exists()
