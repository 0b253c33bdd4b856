"""What numl-label --out leaves, also when it cannot be written or the program is ended."""

import json
import os
import shutil
import signal
import subprocess

import grpc
import h5py
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from tests.cpp.scripted import BUSY, scripted
from tests.inputs import EVENTS
from tests.kit import until
from tests.programs import run_program


@pytest.mark.parametrize("kilobytes", [1, 8, 16, 30, 45, 50])
def test_a_full_disk_is_told_and_no_file_is_left(program, tmp_path, kilobytes):
    """A limit on the size of files stands for the disk.

    A shell sets it, not a preexec_fn, which makes Python fork: in the child the server's gRPC
    (grpcio 1.85.1) starts its threads anew, Python closes their descriptors before it starts the
    program, and gRPC aborts when its epoll_wait then fails.
    """
    # SIGXFSZ is ignored so that a write fails, as on a full disk.
    limited = ["bash", "-c", """trap '' XFSZ; ulimit -f "$0"; exec "$@" """, str(kilobytes)]
    with scripted() as server:
        words = [program, "--url", server.address, "--repeat", "60"]
        done = run_program([*limited, *words, "--out", tmp_path / "out.h5", EVENTS], timeout=120)
    assert done.returncode == 1, done.stderr
    assert "out.h5 cannot be written" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def _out_of(label, server, out, *flags):
    return label("--url", server.address, "--in-flight", 1, "--out", out, *flags)


def test_what_another_run_left_does_not_block_a_run_and_the_mode_is_a_new_files(label, tmp_path):
    out = tmp_path / "out.h5"
    (tmp_path / "out.h5.7.part").touch()
    with scripted() as server:
        done = _out_of(label, server, out, EVENTS)
    assert done.returncode == 0, done.stderr
    assert out.stat().st_mode == (tmp_path / "out.h5.7.part").stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.h5", "out.h5.7.part"]


@pytest.mark.parametrize("name", ["events.h5", "symbolic", "hard"])
def test_an_input_is_not_replaced_by_the_results(label, tmp_path, name):
    path = tmp_path / "events.h5"
    shutil.copy(EVENTS, path)
    (tmp_path / "symbolic").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    with scripted() as server:
        done = _out_of(label, server, tmp_path / name, EVENTS, path)
    assert (done.returncode, server.requests) == (2, [])
    assert f"--out {tmp_path / name} is also a file to read" in done.stderr
    assert path.read_bytes() == EVENTS.read_bytes()


def test_an_out_that_is_no_file_is_refused_before_anything_is_sent(label, tmp_path):
    with scripted() as server:
        done = _out_of(label, server, tmp_path, EVENTS)
    assert (done.returncode, server.requests) == (2, [])
    assert (
        done.stderr == f"numl-label: --out {tmp_path} is no file: name one that may be replaced\n"
    )


def test_earlier_results_stay_if_no_event_is_answered(label, tmp_path):
    refused = (grpc.StatusCode.PERMISSION_DENIED, "no")
    with scripted(lambda number: refused if number >= 5 else None) as server:
        assert _out_of(label, server, tmp_path / "out.h5", EVENTS).returncode == 0
        assert _out_of(label, server, tmp_path / "out.h5", EVENTS).returncode == 1
    with h5py.File(tmp_path / "out.h5") as got:
        assert len(got["event_table/event_id"]) == 5
    assert [path.name for path in tmp_path.iterdir()] == ["out.h5"]


def test_what_was_answered_is_kept_if_the_server_then_stays_away(label, tmp_path):
    with scripted(lambda number: BUSY if number >= 3 else None) as server:
        done = _out_of(label, server, tmp_path / "out.h5", "--timeout", 0.5, EVENTS)
    assert done.returncode == 1
    assert "unreachable for 0.5 s" in done.stderr.splitlines()[-1]
    with h5py.File(tmp_path / "out.h5") as got:
        assert got["event_table/event_id"][:, 2].tolist() == [1, 2, 3]
        assert got.attrs["complete"] is np.False_


def test_an_answer_with_other_columns_than_those_before_is_refused_and_none_slip(label, tmp_path):
    def alter(number: int, answer: service_pb2.ModelInferResponse) -> None:
        if number != 2:
            answer.outputs.add(name="e_evt", datatype="FP32", shape=[2])
            answer.raw_output_contents.append(np.array([number, 0], np.float32).tobytes())

    with scripted(alter=alter) as server:
        done = _out_of(label, server, tmp_path / "out.h5", EVENTS)
    assert done.returncode == 1
    assert "event 1\t100\t3: its answer has 5 classes, 0 event scores" in done.stderr
    with h5py.File(tmp_path / "out.h5") as got:
        assert got["event_table/event_id"][:, 2].tolist() == [1, 2, 4, 5]
        assert got["event_table/e_evt"][:, 0].tolist() == [0, 1, 3, 4]
        assert got.attrs["complete"] is np.False_


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_fallback_server_and_leaves_no_part_of_a_file(program, tmp_path, number):
    flags = [
        "--fallback",
        f"echo $$ >{tmp_path}/pid.new; mv {tmp_path}/pid.new {tmp_path}/pid; exec sleep 60",
    ]
    flags += ["--fallback-url", "127.0.0.1:1", "--fallback-stop", f"touch {tmp_path}/stopped"]
    # TSan would hold the signal back while the program waits for a future: here it waits for room.
    words = [str(program), *flags, "--in-flight", "1", "--out", f"{tmp_path}/out.h5", str(EVENTS)]
    client = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    until(lambda: (tmp_path / "pid").exists(), "the fallback server")
    client.send_signal(number)
    assert client.wait(30) == -number
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pid", "stopped"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_summary_is_printed_also_if_the_server_stays_away(label):
    with scripted(lambda number: BUSY if number >= 3 else None) as server:
        flags = ("--in-flight", 1, "--timeout", 0.5, "--json")
        done = label("--url", server.address, *flags, EVENTS)
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["ok"], told["events"], told["failed"]) == (False, 3, 2)


def test_a_signal_leaves_no_part_of_a_file_while_it_waits_for_what_it_sent_last(program, tmp_path):
    words = [program, "--url", "127.0.0.1:1", "--timeout", "3", "--in-flight", "3"]
    words += ["--out", tmp_path / "out.h5", EVENTS]
    client = subprocess.Popen(words, stderr=subprocess.PIPE, text=True)
    assert "unreachable for 3.0 s" in client.stderr.readline()
    # The second such event ends the run; those that were not on their way yet have 3 s more.
    until(lambda: not list(tmp_path.iterdir()), "the end of the file")
    client.terminate()
    assert client.wait(30) == -signal.SIGTERM
    client.stderr.close()


def test_what_nohup_ignores_stays_ignored(program, tmp_path):
    def hang_up(number: int) -> None:
        if number == 0:
            client.send_signal(signal.SIGHUP)

    with scripted(hang_up) as server:
        words = ["nohup", program, "--url", server.address, "--json", EVENTS]
        client = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        client.communicate(timeout=60)
    assert client.returncode == 0


@pytest.mark.parametrize("flags", [(), ("--list",)])
def test_a_reader_that_has_enough_ends_it_without_a_word(program, tmp_path, flags):
    with scripted() as server:
        words = [program, "--url", server.address, "--repeat", "50", *flags]
        client = subprocess.Popen(
            [*words, *[EVENTS] * 400], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        client.stdout.readline()
        client.stdout.close()
        said = client.stderr.read()
        assert (client.wait(60), said) == (0, b"")
    assert len(server.requests) < 1000
