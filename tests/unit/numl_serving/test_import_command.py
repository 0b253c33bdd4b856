"""The importer's command: its report, and what it refuses before it makes an environment."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from checkpoint_files import (
    CHECKOUT,
    FILES,
    checkpoint_of,
    model24,
    names_in,
    norm_file,
    request_for,
)

SCRIPT = CHECKOUT / "scripts" / "import_checkpoint.py"


def run(folder: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a folder."""
    return subprocess.run(
        [sys.executable, SCRIPT, "--model", "nugraph3", *map(str, arguments)],
        cwd=folder,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["absent.ckpt"], "absent.ckpt: No such file or directory: give the .ckpt file"),
        (["text.ckpt"], "text.ckpt: it is not a PyTorch checkpoint (no zip archive): give"),
        (["cut.ckpt"], "cut.ckpt: it is truncated or damaged"),
        (["good.ckpt", "--norm", "no.json"], "no.json: No such file or directory: give --norm"),
        (["good.ckpt", "--event", "no.npz"], "no.npz: No such file or directory: give --event"),
        (["pipe"], "pipe: not a regular file: give the .ckpt file"),
        (["good.ckpt", "--norm", "pipe"], "pipe: not a regular file: give --norm"),
        (["good.ckpt", "--norm", "."], ".: Is a directory: give --norm"),
        (["good.ckpt", "--out", "text.ckpt/m"], "/text.ckpt: not a folder that you can write to"),
    ],
)
def test_an_unusable_file_is_refused_in_one_line_before_an_environment_is_made(
    arguments, complaint, tmp_path
):
    good = checkpoint_of({"weight": torch.zeros(1)}, tmp_path).rename(tmp_path / "good.ckpt")
    (tmp_path / "cut.ckpt").write_bytes(good.read_bytes()[:-100])
    (tmp_path / "text.ckpt").write_text("weights")
    os.mkfifo(tmp_path / "pipe")
    done = run(tmp_path, *arguments, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert complaint in line
    assert done.stdout == ""
    assert names_in(tmp_path) == {"good.ckpt", "cut.ckpt", "text.ckpt", "pipe"}


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--position-scale", "1"], "argument --position-scale: '1' is not two numbers: give"),
        (["--planes", "u,,y"], "argument --planes: 'u,,y' is not a list of names: separate"),
    ],
)
def test_a_senseless_option_is_refused_before_the_checkpoint_is_read(
    arguments, complaint, tmp_path
):
    done = run(tmp_path, "absent.ckpt", *arguments, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {complaint}")
    assert list(tmp_path.iterdir()) == []


def test_the_script_prints_a_report_or_one_line(tmp_path):
    request = request_for("24.7.1", tmp_path, planes=None)
    out = ("--out", tmp_path / "out")
    given = ("--norm", request.norm, "--planes", "u,v,y", "--position-scale", "1,0.5",
             "--features", "wire_position,time_position,integral,rms",
             "--event-classes", "a, b,c")  # fmt: skip
    done = run(tmp_path, request.checkpoint, *out, *given, "--json")
    assert done.returncode == 0, done.stderr
    card = json.loads(done.stdout)["card"]
    assert card["network"]["generation"] == "24.7.1"
    assert card["position_scale"] == [1, 0.5]
    assert [head["classes"] for head in card["heads"] if head["name"] == "event"] == [list("abc")]
    assert names_in(tmp_path / "out") == FILES, "a launch needs a golden answer"
    done = run(tmp_path, request.checkpoint, *out, *given)
    assert "hit features" in done.stdout
    failed = run(tmp_path, request.checkpoint, *out)
    assert failed.returncode == 1
    assert failed.stdout == ""
    # Before it may stand that an environment is made.
    assert failed.stderr.splitlines()[-1].startswith(
        "error: model.ckpt: it has no feature normalisation"
    )
    assert failed.stderr.count("error: ") == 1


def test_a_report_on_a_terminal_has_a_strangers_names_without_controls_and_any_path(tmp_path):
    model = model24("24.7.1")
    state = {**model.state_dict(), "loss.\x1b[31mred": torch.zeros(1)}
    checkpoint = checkpoint_of(state, tmp_path)
    arguments = (checkpoint, "--norm", norm_file(tmp_path), "--out", tmp_path / "na\udce9me")
    primary, secondary = os.openpty()
    command = [sys.executable, SCRIPT, "--model", "nugraph3", *map(str, arguments)]
    said = b""
    with subprocess.Popen(command, stdout=secondary) as done:
        os.close(secondary)
        with contextlib.suppress(OSError):  # its other end is closed
            while part := os.read(primary, 65536):
                said += part
    os.close(primary)
    assert done.returncode == 0
    assert b"\x1b" not in said
    assert rb"loss.\x1b[31mred" in said
    assert rb"na\udce9me/weights.safetensors" in said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_import_that_is_stopped_leaves_nothing_half_done(number, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    request = request_for("24.7.1", tmp_path)
    arguments = (request.checkpoint, "--norm", request.norm, "--out", folder / "out")
    command = [sys.executable, SCRIPT, "--model", "nugraph3", *map(str, arguments)]
    with subprocess.Popen(command) as done:
        while not list(folder.iterdir()):
            assert done.poll() is None
        done.send_signal(number)
    # On a busy host it may have come to its end before.
    assert names_in(folder) <= {"out"}
