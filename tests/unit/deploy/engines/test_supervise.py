"""The supervisor: it heals, replaces and tells what its server does."""

import errno
import os
import shutil
import signal
import threading
import time
from pathlib import Path

import psutil
import pytest

from deploy.client.probe import SmokeResult
from deploy.deployment.state import DeploymentFolder
from deploy.engines import pulse, supervise
from tests.unit.deploy.engines.supervised import Run, StandIn

LOADED, FAILED = "successfully loaded 'm'", "failed to load 'm' version 1: Internal: no"


def test_a_server_that_stops_starting_is_killed_and_started_once_more(run, stubs, tmp_path):
    again = Run(tmp_path / "again", stubs, still=True)
    again.close()
    first, second = again.servers
    assert (first.killed, first.stopped, second.killed) == (True, True, False)


def test_a_dead_stub_s_model_is_touched_and_its_old_stubs_end_once_it_is_loaded(run):
    server = run.lose_a_stub()
    assert run.state.phase == "healing"
    assert run.state.cause == "dead stub processes: 1 of model m"
    old, new = server.own[1], run.start_stubs()
    run.until_looked()
    assert run.state.phase == "healing", "new stubs alone do not say that the model is loaded"
    assert old.process.process() is not None
    server.say(LOADED)
    run.until_healed()
    assert run.state.cause is None
    run.until(lambda _: not old.process.is_running())
    run.until(lambda _: not run.supervisor._retired)  # it is not looked after any more
    assert all(stub.process.is_running() for stub in new)
    assert run.servers == [server]


def test_a_touched_model_is_newer_than_before_whatever_the_clock_says(run, stubs):
    ahead = time.time_ns() + 10**12
    (run.version / "model.py").touch()
    os.utime(run.version / "model.py", ns=(ahead, ahead))
    stubs.kill(run.servers[0].own[0])
    run.until_touched(ahead)


def test_a_load_that_fails_is_told_and_leaves_the_server_alone(run):
    server = run.lose_a_stub()
    for _ in range(6):
        server.say(
            "failed to load 'm' version 1: Internal: Unable to initialize shared memory key 'x' "
            "to requested size: No space left on device"
        )
        run.wait_long(0.7)
    assert "/dev/shm is too small" in (run.state.cause or "")
    assert (run.state.phase, run.state.restarts) == ("healing", 0)
    run.start_stubs()
    server.say(LOADED)
    run.until(lambda state: state.phase == "ready")
    assert run.servers == [server]


def test_while_one_model_cannot_be_loaded_another_is_healed_again_and_again(run, stubs):
    server = run.lose_a_stub()
    stubs.kill(server.own[2])
    run.until_looked()
    server.say("failed to load 'n' version 1: Internal: no")
    run.until(lambda state: state.phase == "healing")
    run.until_looked()
    for _ in range(2):
        before = run.version.stat().st_mtime_ns
        new = run.start_stubs()
        server.say(LOADED)
        run.until_looked()
        stubs.kill(new[0])
        server.say("failed to load 'n' version 1: Internal: no")
        run.until_touched(before)


def test_a_load_may_take_more_memory_than_the_server_afterwards(run, monkeypatch):
    server = run.lose_a_stub()
    monkeypatch.setattr(server, "outgrown", lambda: "uses 5000 MB")
    run.start_stubs()
    run.clock.ahead += supervise.MEMORY_S
    run.until_looked()
    monkeypatch.setattr(server, "outgrown", lambda: None)
    server.say(LOADED)
    run.until_healed()
    assert run.servers == [server]


def fail_a_second_model(run: Run) -> StandIn:
    """Kill a stub of each model; return the server, once it is told to load both again."""
    server, before = run.lose_a_stub(), run.other_version.stat().st_mtime_ns
    run.stubs.kill(server.own[2])
    server.say(FAILED)
    run.until(lambda _: run.other_version.stat().st_mtime_ns > before)
    return server


def test_while_a_load_keeps_failing_memory_is_bounded_and_a_lost_state_file_written(
    run, monkeypatch
):
    server = run.lose_a_stub()
    server.say(FAILED)
    run.until_looked()
    run.folder.state_file.unlink()
    run.until(lambda state: state.phase == "healing")
    monkeypatch.setattr(server, "outgrown", lambda: "uses 5000 MB")
    run.until_restarted()
    assert server.stopped


def test_a_load_that_keeps_failing_does_not_keep_another_model_s_old_stubs(run, stubs):
    server = fail_a_second_model(run)
    run.start_stubs()
    server.say("successfully loaded 'm'\nfailed to load 'n' version 1: Internal: no")
    assert stubs.children[1].wait() == -signal.SIGKILL
    assert (run.state.phase, run.servers) == ("healing", [server])


def test_a_load_that_never_ends_is_given_up_although_another_keeps_failing(run):
    server = fail_a_second_model(run)
    for _ in range(2):
        server.say(FAILED)
        run.wait_long(0.6)
    run.until_restarted()
    assert server.stopped


def test_a_heal_whose_log_line_was_lost_is_no_reason_to_restart(run):
    server = run.lose_a_stub()
    old = server.own[1]
    run.start_stubs()
    run.wait_long()
    run.until(lambda state: state.phase == "ready")
    assert (run.state.heals, run.state.restarts, run.state.cause) == (1, 0, None)
    # It could have answered for a load that never ends. A kill takes a moment.
    run.until(lambda _: old.process.process() is None)
    assert (run.servers, server.stopped) == ([server], False)


@pytest.mark.parametrize("new_stubs", [False, True], ids=["it never ends", "no right answer"])
def test_a_load_after_which_no_model_answers_right_is_given_up_and_the_server_restarted(
    run, monkeypatch, new_stubs
):
    def silent(_probe: object, model: str, _golden: object) -> SmokeResult:
        return SmokeResult(model, ready=False, error="no answer", seconds=None)

    monkeypatch.setattr(supervise, "smoke", silent)
    first = run.lose_a_stub()
    if new_stubs:
        run.start_stubs()
    run.wait_long()
    run.until_restarted()
    assert (run.state.heals, first.stopped, len(run.servers)) == (0, True, 2)


def test_a_new_stub_that_dies_before_its_model_answers_is_healed_next(run, stubs):
    server = run.lose_a_stub()
    touched = run.version.stat().st_mtime_ns
    stubs.kill(run.start_stubs()[-1])
    server.say(LOADED)
    run.until_touched(touched)
    run.start_stubs()
    server.say(LOADED)
    run.until_healed()


def test_an_old_stub_that_takes_its_time_to_end_stands_for_no_new_one_that_died(
    run, stubs, monkeypatch
):
    killed = []
    server = run.lose_a_stub()
    monkeypatch.setattr(psutil.Process, "kill", lambda process: killed.append(process))
    new = run.start_stubs()
    server.say("successfully loaded 'm'")
    run.until_healed()
    run.until(lambda _: bool(killed))
    before = run.version.stat().st_mtime_ns
    stubs.kill(new[0])
    run.until_touched(before)


def test_a_model_whose_files_somebody_removed_is_named_and_the_others_are_still_healed(run, stubs):
    server = run.servers[0]
    shutil.rmtree(run.version.parent)
    stubs.kill(server.own[0])
    run.until(lambda state: state.phase == "degraded")
    assert run.state.cause == (
        f"model m cannot be reloaded: its files are gone from {run.folder.repository}"
    )
    before = run.other_version.stat().st_mtime_ns
    stubs.kill(server.own[2])
    run.until(lambda _: run.other_version.stat().st_mtime_ns > before)
    server.own.append(stubs.add("n"))
    server.say("successfully loaded 'n'")
    run.until(lambda state: state.heals == 1 and state.phase == "degraded")
    assert not server.stopped


def test_a_server_that_leaves_several_questions_in_a_row_unanswered_is_killed_and_replaced(run):
    [server] = run.servers
    lost_now_and_then = [False, False, True] * 3
    run.probe.said.extend(lost_now_and_then)
    asked = len(run.probe.asked)
    run.until(lambda _: len(run.probe.asked) > asked + len(lost_now_and_then))
    assert run.servers == [server]
    run.probe.said.extend([False] * pulse.MOST)
    run.until_restarted()
    assert server.killed
    assert server.stopped


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "The futex facility returned an unexpected error code.\nSignal (6) received.",
            "Triton crashed on a request that its client gave up just as it was answered "
            "(triton-inference-server/server issue 7368); give clients deadlines that answers "
            "keep, or use Triton 25.04 or later (--triton)",
        ),
        ("I am gone", "the end of its log: I am gone\n"),
    ],
)
def test_why_a_server_died_is_logged(run, caplog, monkeypatch, words, told):
    [server] = run.servers
    server.say(words)
    monkeypatch.setattr(server, "alive", lambda: False)
    run.until_restarted()
    assert f"the server died: {told}" in caplog.messages


def test_a_stub_that_is_stopped_by_a_signal_is_replaced(run):
    [server], before = run.servers, run.version.stat().st_mtime_ns
    os.kill(server.own[0].process.pid, signal.SIGSTOP)
    run.until_touched(before)
    run.start_stubs()
    server.say(LOADED)
    run.until_healed()
    run.until(lambda _: server.own[0].process.process() is None)


def test_a_state_that_could_not_be_written_is_written_once_there_is_room(run, monkeypatch):
    write, refused = DeploymentFolder.write_state, threading.Event()

    def full(*_: object) -> None:
        refused.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(DeploymentFolder, "write_state", full)
    run.probe.said.extend([False] * pulse.MOST)
    assert refused.wait(60)
    run.until(lambda _: len(run.servers) == 2)
    assert run.state.restarts == 0
    monkeypatch.setattr(DeploymentFolder, "write_state", write)
    run.until_restarted()


def test_a_state_file_that_somebody_removed_is_written_again(run):
    before = run.state
    run.folder.state_file.unlink()
    run.until(lambda state: state == before)


def test_a_state_folder_that_nobody_can_look_into_for_a_moment_stops_no_server(run, monkeypatch):
    exists, asked = Path.exists, threading.Event()

    def fails(path: Path) -> bool:
        if path != run.folder.state_file:
            return exists(path)
        asked.set()
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))

    monkeypatch.setattr(Path, "exists", fails)
    assert asked.wait(60)
    monkeypatch.setattr(Path, "exists", exists)
    run.until(lambda state: state.phase == "ready")
    assert (len(run.servers), run.state.restarts) == (1, 0)
