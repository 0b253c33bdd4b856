"""The agent's command line, and what reaches its log."""

import errno
import fcntl
import os
import signal

import pytest
from numl_sync.agent import Agent
from numl_sync.command import main

URL = "s3://http://127.0.0.1:9/models"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--poll", "nan"], "--poll: 'nan' is not a number of seconds above 0 and below 86400"),
        (["--poll", "0"], "--poll: '0' is not a number of seconds above 0 and below 86400"),
        (["--poll", "86400"], "--poll: '86400' is not a number of seconds above 0 and below 86400"),
        (["--server", "http://host:x"], "--server: 'http://host:x' is not http://HOST:PORT"),
        (["--server", "host:8000"], "--server: 'host:8000' is not http://HOST:PORT"),
    ],
)
def test_a_wrong_option_is_said_in_one_line(flags, words, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        main([URL, str(tmp_path / "mirror"), *flags])
    assert ended.value.code == 2
    assert capsys.readouterr().err.splitlines()[-1].endswith(f"error: argument {words}")
    assert list(tmp_path.iterdir()) == []


def test_what_a_service_says_begins_no_line_of_the_log(tmp_path, capsys):
    assert main([URL + "/a\nsync: release 1 serves\x1b[2J", str(tmp_path)]) == 2
    out = capsys.readouterr().out
    assert out.startswith(
        "sync: s3://http://127.0.0.1:9/models/a sync: release 1 serves [2J: Triton "
    )
    assert out.count("\n") == 1


def test_a_key_with_a_line_end_is_said_and_not_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key\n")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    assert main([URL, str(tmp_path), "--once"]) == 1
    assert capsys.readouterr().out == (
        "sync: nothing is verified: no key is given (--verify)\n"
        f"sync: {URL}: the access key has an invalid character, such as a newline; no release yet\n"
    )


@pytest.mark.parametrize(
    ("named", "line"),
    [
        ("http://127.0.0.1:9", "sync: s3://http://127.0.0.1:9/models: no connection; "),
        ("127.0.0.1:9", "sync: s3://https://127.0.0.1:9/models: no connection; "),
        ("http://key:word@host", "sync: AWS_ENDPOINT is not [http[s]://]HOST[:PORT]\n"),
    ],
)
def test_a_variable_names_the_service_of_an_address_without_one(
    named, line, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "some-key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "word")
    monkeypatch.setenv("AWS_ENDPOINT", named)
    assert main(["s3://models", str(tmp_path), "--once"]) > 0
    assert line in capsys.readouterr().out


@pytest.mark.parametrize("least", ["x", "-1", "9" * 5000])
def test_a_floor_that_is_no_number_is_refused(least, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("NUML_VERIFY_SEQUENCE", least)
    assert main([URL, str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().out.startswith("sync: NUML_VERIFY_SEQUENCE is '")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
def test_a_file_system_without_locks_is_said_to_be_the_fault(tmp_path, monkeypatch, capsys, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main([URL, str(tmp_path), "--once"]) == 2
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"sync: {tmp_path}/lock: cannot be locked ({os.strerror(number)}); "
        "FOLDER needs a file system with locks"
    )


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("finalized", [False, True], ids=["", "where something is finalized"])
@pytest.mark.parametrize(("once", "status"), [(("--once",), 128 + signal.SIGTERM), ((), 0)])
def test_only_an_agent_that_runs_on_ends_well_by_a_signal(
    tmp_path, monkeypatch, once, status, finalized
):
    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def step(agent: Agent) -> float:
        steps.append(agent)
        assert len(steps) < 9
        Finalized() if finalized else signal.raise_signal(signal.SIGTERM)
        return 0.0

    steps: list[Agent] = []
    monkeypatch.setattr(Agent, "step", step)
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(main([URL, str(tmp_path), *once]))
    assert ended.value.code == status
    assert len(steps) == 1
