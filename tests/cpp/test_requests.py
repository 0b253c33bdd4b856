"""What the C++ client does when servers refuse, hang, die or want to know who asks."""

import json
import signal
import socket
import subprocess
import sys
import threading
import time

import grpc
import pytest
from tritonclient.grpc import service_pb2

from deploy.host.paths import CHECKOUT
from tests.certificates import Authority
from tests.cpp.conftest import only_line
from tests.cpp.scripted import BUSY, scripted, stoppable
from tests.inputs import EVENTS
from tests.kit import free_ports
from tests.programs import run_program

ABOVE_RATE = (grpc.StatusCode.RESOURCE_EXHAUSTED, "local_rate_limited")
REFUSED = (grpc.StatusCode.INVALID_ARGUMENT, "hit_table_integral: row 3 is 5e+06")


def test_a_refused_event_is_named_in_the_servers_words_and_not_sent_again(label):
    with scripted(lambda number: REFUSED if number == 1 else None) as server:
        done = label("--url", server.address, "--in-flight", 1, "--quiet", EVENTS)
    assert len(server.requests) == 5
    url = f"grpc://{server.address}"
    assert only_line(done, 1) == f"event 1\t100\t2: {url}: hit_table_integral: row 3 is 5e+06"


def test_a_busy_server_is_asked_again_after_a_pause(label):
    with scripted(lambda number: BUSY if number < 2 else None) as server:
        done = label("--url", server.address, "--json", EVENTS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["retries"] >= 1


def test_a_client_above_its_rate_at_a_front_door_waits_and_loses_no_event(label):
    with scripted(lambda number: ABOVE_RATE if number % 2 == 0 else None) as server:
        flags = ("--in-flight", 64, "--repeat", 100, "--json")
        done = label("--url", server.address, *flags, EVENTS)
    told = json.loads(done.stdout)
    assert (told["events"], told["failed"]) == (500, 0), done.stderr
    assert told["retries"] > 200  # twice the budget


@pytest.mark.parametrize("most", [1, 3, 8])
def test_as_many_requests_are_on_their_way_as_may_be_and_no_more(label, most):
    lock, there, seen = threading.Lock(), 0, []

    def hold(_number: int) -> None:
        nonlocal there
        with lock:
            there += 1
            seen.append(there)
        time.sleep(0.01)
        with lock:
            there -= 1

    with scripted(hold) as server:
        flags = ("--in-flight", most, "--repeat", 24, "--json")
        done = label("--url", server.address, *flags, EVENTS)
    assert json.loads(done.stdout)["events"] == 120, done.stderr
    assert max(seen) == most


def test_requests_of_a_server_that_refuses_go_to_another_at_once(label):
    with scripted(lambda _: BUSY) as first, scripted() as second:
        urls = ("--url", first.address, "--url", second.address)
        done = label(*urls, "--json", "--repeat", 20, EVENTS)
    assert json.loads(done.stdout)["events"] == 100, done.stderr
    assert len(second.requests) == 100
    assert len(first.requests) < 20


def test_a_server_that_hangs_is_away_long_before_the_timeout(program):
    """A request that runs into the timeout fails; these go to the other server before."""
    impatient = program.parent / "numl_label_impatient"
    with (
        stoppable() as hangs,
        scripted(lambda number: hangs.stop() if number == 5 else None) as other,
    ):
        urls = ("--url", hangs.address, "--url", other.address)
        words = [impatient, *urls, "--json", "--repeat", "20", EVENTS]
        done = run_program(words, timeout=120)
    told = json.loads(done.stdout)
    assert (told["events"], told["failed"]) == (100, 0), done.stderr
    assert told["retries"] > 0


def test_a_service_that_refuses_everything_is_not_loaded_by_retries(label):
    """The budget holds, and a refusing server is looked at by one request at a time."""
    with scripted(lambda _: BUSY) as server:
        done = label("--url", server.address, "--timeout", 3, "--repeat", 10, EVENTS)
        assert done.returncode == 1
        assert "Exceeds maximum queue size: try again in 1 s" in done.stderr
    assert len(server.requests) <= 8 + 2 * 16


def test_a_request_that_only_waited_ends_with_the_servers_last_words(label):
    with scripted(lambda _: BUSY) as server:
        done = label("--url", server.address, "--in-flight", 1, "--timeout", 0.3, EVENTS)
    said = done.stderr.splitlines()
    assert len(said) == 2
    assert all("Exceeds maximum queue size" in line for line in said), said


def test_a_deadline_of_the_servers_own_is_told_in_its_words(label):
    late = (grpc.StatusCode.DEADLINE_EXCEEDED, "upstream request timeout")
    with scripted(lambda _: late) as server:
        done = label("--url", server.address, "--quiet", EVENTS)
    said = f"event 1\t100\t1: grpc://{server.address}: upstream request timeout\n"
    assert done.stderr.startswith("numl-label: " + said)


def test_an_answer_of_any_width_ends_in_one_line(label):
    def wide(_: int, answer: service_pb2.ModelInferResponse) -> None:
        for output in answer.outputs:
            if "semantic" in output.name:
                output.shape[1] = 1 << 62

    with scripted(alter=wide) as server:
        done = label("--url", server.address, "--quiet", EVENTS)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 5
    assert "x_semantic_u with 4611686018427387904 columns" in done.stderr


def test_a_server_that_takes_seconds_to_accept_is_waited_for(label):
    with stoppable() as slow:
        slow.stop()
        threading.Timer(3, slow.process.send_signal, [signal.SIGCONT]).start()
        done = label("--url", slow.address, "--json", EVENTS)
    told = json.loads(done.stdout)
    assert (told["events"], told["retries"]) == (5, 0), done.stderr


def test_a_server_that_nothing_connects_to_costs_no_event_of_a_short_timeout(label):
    with socket.create_server(("127.0.0.1", 0)) as silent, scripted() as server:
        urls = ("--url", f"127.0.0.1:{silent.getsockname()[1]}", "--url", server.address)
        done = label(*urls, "--timeout", 4, "--json", EVENTS)
    told = json.loads(done.stdout)
    assert (told["events"], told["failed"]) == (5, 0), done.stderr


def test_a_missing_model_is_told_at_once(label):
    unknown = (grpc.StatusCode.NOT_FOUND, "Request for unknown model: 'nugraph3' is not found")
    with scripted(lambda _: unknown) as server:
        done = label("--url", server.address, "--in-flight", 1, EVENTS)
    assert len(server.requests) == 5
    assert f"grpc://{server.address} serves no model nugraph3" in done.stderr


def test_no_server_is_told_with_the_reason(label):
    done = label("--url", "127.0.0.1:1", "--timeout", 1, EVENTS)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("numl-label: unreachable for 1.0 s: grpc://127.0.0.1:1: ")
    assert "Connection refused" in last


@pytest.mark.parametrize("mutual", [False, True], ids=["tls", "mutual"])
def test_tls_and_a_token_that_is_read_anew(label, tmp_path, mutual):
    authority = Authority(tmp_path, "site")
    pair = authority.issue("127.0.0.1")
    mine = authority.issue("client")
    token = tmp_path / "token"
    token.write_text("secret\n")
    flags: list[object] = ["--ca", authority.file, "--token-file", token]
    with scripted(pair=pair, clients=authority if mutual else None) as server:
        where = ("--url", f"grpcs://{server.address}", "--quiet", "--timeout", 2)
        own = ["--cert", mine.cert, "--key", mine.key] if mutual else []
        done = label(*where, *flags, *own, EVENTS)
        assert done.returncode == 0, done.stderr
        assert {said["authorization"] for said in server.metadata} == {"Bearer secret"}
        answered = len(server.requests)
        stranger = Authority(tmp_path, "stranger").file
        assert label(*where, "--ca", stranger, *own, EVENTS).returncode == 1
        if mutual:
            assert label(*where, *flags, EVENTS).returncode == 1
        assert len(server.requests) == answered


def test_a_token_is_never_sent_without_tls(label, tmp_path):
    (tmp_path / "token").write_text("secret")
    with scripted() as server:
        done = label("--url", server.address, "--token-file", tmp_path / "token", EVENTS)
    assert (done.returncode, server.requests) == (2, [])
    assert "without TLS" in done.stderr


@pytest.mark.parametrize("stop", [False, True], ids=["SIGTERM", "command"])
def test_a_fallback_server_is_started_if_no_other_answers_and_ended(label, tmp_path, stop):
    port = free_ports().grpc
    code = (
        "import signal, sys, threading, grpc\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "from tests.cpp.scripted import Scripted, service_pb2_grpc as s\n"
        "server = grpc.server(ThreadPoolExecutor(8))\n"
        "s.add_GRPCInferenceServiceServicer_to_server(Scripted(), server)\n"
        f"server.add_insecure_port('127.0.0.1:{port}'); server.start()\n"
        "end = threading.Event(); signal.signal(signal.SIGTERM, lambda *_: end.set())\n"
        "end.wait()\n"
        f"open({str(tmp_path / 'ended')!r}, 'w').close()\n"
    )
    (tmp_path / "serve.py").write_text(code)
    start = f"cd {CHECKOUT} && PYTHONPATH=. exec {sys.executable} {tmp_path}/serve.py"
    flags = ["--fallback", start, "--fallback-url", f"127.0.0.1:{port}"]
    if stop:
        flags += ["--fallback-stop", f"touch {tmp_path}/stopped"]
    done = label(*flags, "--json", EVENTS)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["fallback_started"] is True
    assert (tmp_path / "ended").exists()
    assert (tmp_path / "stopped").exists() is stop


def test_a_fallback_that_cannot_start_is_told_at_once(label):
    done = label("--fallback", "exit 3", "--fallback-url", "127.0.0.1:1", EVENTS)
    assert done.returncode == 1
    assert "the fallback server's command ended with status 3" in done.stderr


def test_a_fallback_that_cannot_start_fails_no_event_that_another_server_answers_in_time(label):
    """The other returns after the five seconds for which the fallback server waits."""
    returns = time.monotonic() + 7

    def says(_: int) -> tuple[grpc.StatusCode, str] | None:
        return BUSY if time.monotonic() < returns else None

    with scripted(says) as server:
        flags = ("--url", server.address, "--json")
        done = label(*flags, "--fallback", "exit 3", "--fallback-url", "127.0.0.1:1", EVENTS)
    assert json.loads(done.stdout)["events"] == 5, done.stderr
    assert json.loads(done.stdout)["fallback_started"] is True


# What its client gets that tells of the signal.
TRAPPING = (
    *("--fallback", "trap 'echo ended; exit' TERM; while :; do sleep 0.1; done"),
    *("--fallback-url", "127.0.0.1:1", "--timeout", "1", EVENTS),
)


def test_a_fallback_server_hears_a_signal_that_its_client_blocks(program):
    """As the threads of a framework may; otherwise it is killed after half a minute."""
    # Debian's own shell blocks nothing.
    shell = 'mount --bind "$(command -v bash)" "$(readlink -f /bin/sh)" && exec "$@"'
    words = ["unshare", "--mount", "bash", "-c", shell, "bash"]
    if run_program([*words, "true"]).returncode:
        pytest.skip("no mount is allowed here")
    code = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])"
    words += [sys.executable, "-c", f"{code}; os.execv(sys.argv[1], sys.argv[1:])", program]
    done = run_program([*words, *TRAPPING], timeout=60)
    assert "ended" in done.stderr.splitlines()


def test_a_fallback_server_hears_a_signal_that_its_client_ignores(program):
    """As of a job whose script outlives SIGTERM; a shell cannot trap what it was started with."""
    words = ["bash", "-c", "trap '' TERM; exec \"$@\"", "bash", program, *TRAPPING]
    done = run_program(words, timeout=60)
    assert "ended" in done.stderr.splitlines()


def test_all_that_the_fallbacks_command_runs_has_ended_before_its_stop_is_run(label, tmp_path):
    """A shell that waits for the server ends at once by the signal, the server a little later."""
    server = f"trap 'sleep 0.5; touch {tmp_path}/ended; exit' TERM; while :; do sleep 0.1; done"
    flags = ["--fallback", f"({server}) & wait", "--fallback-url", "127.0.0.1:1"]
    flags += ["--fallback-stop", f"ls {tmp_path}", "--timeout", "0.5", EVENTS]
    assert "ended" in label(*flags).stderr.splitlines()


def test_the_messages_have_the_protocols_numbers_and_types(tmp_path):
    """Compared with the messages of Triton's own client."""
    from google.protobuf import descriptor_pb2

    folder = CHECKOUT / "clients" / "cpp" / "proto"
    words = ["protoc", f"-I{folder}", f"--descriptor_set_out={tmp_path}/set", "numl_wire.proto"]
    subprocess.run(words, check=True)
    [file] = descriptor_pb2.FileDescriptorSet.FromString((tmp_path / "set").read_bytes()).file
    theirs = {
        "InferRequest": service_pb2.ModelInferRequest,
        "InferResponse": service_pb2.ModelInferResponse,
    }
    tensors = (theirs["InferRequest"].InferInputTensor, theirs["InferResponse"].InferOutputTensor)
    for message in file.message_type:
        for known in tensors if message.name == "Tensor" else (theirs[message.name],):
            for each in message.field:
                other = known.DESCRIPTOR.fields_by_name[each.name]
                assert (each.number, each.type) == (other.number, other.type)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no file is given"),
        (["--nix", "x"], "--nix: no such option"),
        (["--url"], "--url needs a value"),
        (["x.h5"], "no server is given"),
        (["--url", "http://h", "x.h5"], "scheme"),
        (["--url", "h:99999", "x.h5"], "h:99999: the port must be a number from 1 to 65535"),
        (["--url", "h", "--timeout", "nan", "x.h5"], "--timeout nan"),
        (["--url", "h", "--in-flight", "0", "x.h5"], "--in-flight 0"),
        (["--url", "h", "--repeat", "2.9", "x.h5"], "--repeat 2.9: not a whole number"),
        (["--url", "h", "--cert", "c", "x.h5"], "go together"),
        (["--url", "grpcs://h", "--ca", "/nowhere", "x.h5"], "/nowhere"),
        (["--fallback", "true", "x.h5"], "address"),
    ],
)
def test_a_wrong_command_line_is_one_line(label, words, said):
    done = label(*words)
    assert done.stdout == ""
    assert said in only_line(done, 2)
