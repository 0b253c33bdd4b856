"""What happens to the rest of a server while a dead stub is replaced."""

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from deploy.client.probe import Probe, smoke
from deploy.engines.server import Stub, living_stubs
from deploy.triton.golden import read_golden
from deploy.triton.stage import VERSION
from tests.kit import SOON_S, Kit, until


@pytest.fixture(scope="module")
def pair(kit):
    """Two models with three instances each."""
    yield kit.up("pair", "--models", "nugraph2_cpu,nugraph3", "--instances", "3")
    kit.end("pair")


def _stubs(answer: dict[str, Any], model: str, *, stopped: bool = False) -> list[Stub]:
    """Return the stubs of a model, the youngest last."""
    found = living_stubs(psutil.Process(answer["server"]["pid"]), stopped=stopped)
    return sorted(
        (stub for stub in found if stub.model == model), key=lambda stub: stub.process.started
    )


def _heals(kit: Kit) -> int:
    return int(kit.noted("pair")["heals"])


def _only_new(answer: dict[str, Any], model: str, before: list[Stub]) -> None:
    def only_new() -> bool:
        now = _stubs(answer, model, stopped=True)
        return len(now) == 3 and not set(now) & set(before)

    until(only_new, "the end of what was replaced")


def _healthy(kit: Kit, answer: dict[str, Any]) -> None:
    status = kit.json("status", "--name", "pair")
    assert status["ok"], status
    assert status["state"]["server"] == answer["server"], "the server was not restarted"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stub_that_dies_or_stops_is_replaced_and_no_other_model_is_touched(kit, pair, number):
    heals, others = _heals(kit), _stubs(pair, "nugraph2_cpu")
    before = _stubs(pair, "nugraph3")
    os.kill(before[-1].process.pid, number)
    until(lambda: _heals(kit) > heals, "healing")
    _only_new(pair, "nugraph3", before)
    assert _stubs(pair, "nugraph2_cpu") == others
    _healthy(kit, pair)


def test_stubs_of_two_models_that_die_together_are_both_replaced(kit, pair):
    heals = _heals(kit)
    before = {model: _stubs(pair, model) for model in pair["models"]}
    for stubs in before.values():
        os.kill(stubs[-1].process.pid, signal.SIGKILL)
    until(lambda: _heals(kit) > heals, "healing")
    for model, stubs in before.items():
        _only_new(pair, model, stubs)
    _healthy(kit, pair)


def test_a_stub_that_dies_at_work_costs_other_clients_no_answer_of_the_living_one(kit, pair):
    """Triton hands a dead stub one request a second until the model is loaded anew."""
    golden = read_golden(kit.folder("pair") / "model_repository/nugraph3" / VERSION / "golden.npz")
    probe, done = Probe(f"http://127.0.0.1:{pair['ports']['http']}"), threading.Event()
    right, wrong = list[float](), list[str]()

    def ask() -> None:
        while not done.is_set():
            result = smoke(probe, "nugraph3", golden)
            if result.ok:
                right.append(time.monotonic())
            else:
                wrong.append(result.words)

    clients = [threading.Thread(target=ask) for _ in range(4)]
    for client in clients:
        client.start()
    heals, before = _heals(kit), _stubs(pair, "nugraph3")
    killed = time.monotonic()
    try:
        os.kill(before[-1].process.pid, signal.SIGKILL)
        until(lambda: _heals(kit) > heals, "healing")
    finally:
        healed = time.monotonic()
        done.set()
        for client in clients:
            client.join()
    assert [at for at in right if killed + 0.1 < at < healed], "the living one serves meanwhile"
    assert all("is not healthy" in words for words in wrong), wrong
    assert len(wrong) <= 2 + (healed - killed)
    _only_new(pair, "nugraph3", before)
    _healthy(kit, pair)


def test_a_stub_that_dies_while_it_replaces_another_is_replaced_itself(kit, pair):
    """Triton may wait for the dead one forever; the supervisor then replaces the whole server."""
    before, seen = _stubs(pair, "nugraph3"), kit.noted("pair")
    os.kill(before[-1].process.pid, signal.SIGKILL)

    def importing() -> list[int]:
        """Return the new stubs' pids, of those that Triton has greeted and that are not ready."""
        new = [stub.process.pid for stub in _stubs(pair, "nugraph3") if stub not in before]
        return [pid for pid in new if "libnuml.so" in Path(f"/proc/{pid}/maps").read_text()]

    def replaced() -> bool:
        now = kit.noted("pair")
        counts = ("heals", "restarts")
        return now["phase"] == "ready" and any(now[each] > seen[each] for each in counts)

    until(lambda: bool(importing()), "the new stubs")
    os.kill(importing()[-1], signal.SIGKILL)
    until(replaced, "healing")
    if kit.noted("pair")["restarts"] > seen["restarts"]:
        pair["server"] = kit.noted("pair")["server"]
    _only_new(pair, "nugraph3", before)
    _healthy(kit, pair)


def test_half_a_file_in_the_staged_copy_leaves_what_is_loaded_in_service(kit, pair):
    weights = kit.folder("pair") / "model_repository/nugraph3" / VERSION / "weights.safetensors"
    whole, before = weights.read_bytes(), _stubs(pair, "nugraph3")
    weights.write_bytes(whole[: len(whole) // 2])
    try:
        log = kit.folder("pair") / "server.log"
        until(lambda: "failed to load 'nugraph3'" in log.read_text(), "the attempt")
        assert kit.json("smoke", "--name", "pair")["ok"]
        assert {*before} <= {*_stubs(pair, "nugraph3")}
    finally:
        weights.write_bytes(whole)
    _only_new(pair, "nugraph3", before)
    until(lambda: kit.json("status", "--name", "pair")["ok"], "the good state")
    _healthy(kit, pair)


def test_a_connection_that_was_open_during_a_heal_ends_when_the_server_ends_it(kit, pair):
    ask = b"GET /v2/health/live HTTP/1.1\r\nHost: numl\r\n%s\r\n"
    address = ("127.0.0.1", pair["ports"]["http"])
    with socket.create_connection(address, timeout=SOON_S) as connection:
        connection.sendall(ask % b"")
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")
        heals = _heals(kit)
        os.kill(_stubs(pair, "nugraph3")[-1].process.pid, signal.SIGKILL)
        until(lambda: _heals(kit) > heals, "healing")
        connection.settimeout(20)
        connection.sendall(ask % b"Connection: close\r\n")
        with connection.makefile("rb") as answer:
            # A process that has inherited the connection would keep it open.
            assert answer.read().startswith(b"HTTP/1.1 200")
