"""``numlkit infer``. The transport is a fake: no server is needed."""

import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import h5py
import pytest

from deploy.client import asked
from deploy.client.endpoint import Endpoint
from deploy.client.registry import Registry
from deploy.client.transport import ServedModel
from deploy.commands import evaluate, infer
from deploy.events import client
from deploy.host.errors import ClientError, NotRunningError, ServerAwayError
from tests.inputs import EVENTS
from tests.unit.deploy.events.played import Fake
from tests.unit.deploy.events.written import make_event, write_pynuml


class FakeTransport(Fake):
    """Notes which servers are asked; may be away, or interrupt the run at so many hits."""

    endpoints: list[Endpoint]
    interrupt_at: int | None = None
    away = False

    def __init__(self, endpoint: Endpoint, *, timeout: float) -> None:
        super().__init__(endpoint, timeout=timeout)
        self.endpoints.append(endpoint)

    def describe(self, model: str) -> ServedModel:
        if self.away:
            raise ServerAwayError("http://localhost:8000: connection refused")
        return super().describe(model)

    def infer(self, model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        if len(tensors["hit_table_hit_id"]) == self.interrupt_at:
            os.kill(os.getpid(), signal.SIGINT)
        return super().infer(model, tensors)


@pytest.fixture(autouse=True)
def _fake(monkeypatch):
    monkeypatch.setattr(FakeTransport, "endpoints", [], raising=False)
    monkeypatch.setattr(client, "TritonTransport", FakeTransport)
    monkeypatch.setattr(asked, "default_endpoint", lambda protocol: "localhost")


def write_events(path: Path, hits: Sequence[int], *, bad: int | None = None) -> Path:
    events = [((1, 2, number), *make_event(count, 0)) for number, count in enumerate(hits)]
    if bad is not None:
        events[bad][1]["integral"][:] = 2e6
    write_pynuml(path, events, sequence=False, event_table=False)
    return path


def run(*arguments: object) -> int:
    return infer.main([str(a) for a in arguments])


def report(capsys: pytest.CaptureFixture[str], *arguments: object, status: int = 0) -> Any:
    """Return the answer as JSON, beside which nothing is told."""
    assert run(*arguments, "--json") == status
    said = capsys.readouterr()
    assert said.err == ""
    return json.loads(said.out)


def failures_in(results: Path) -> tuple[int, bool]:
    """Return how many failures are in a results file, and whether it is complete."""
    with h5py.File(results) as file:
        return len(file["failed_table/reason"]), bool(file.attrs["complete"])


def test_all_events_answered_is_success(tmp_path, capsys):
    events = write_events(tmp_path / "a.h5", [6, 9])
    assert run(events, "--out", tmp_path / "r.h5") == 0
    out = capsys.readouterr().out
    assert out.startswith("2 events, 15 hits: nugraph3 at http://localhost:8000\n")
    assert "a 3, b 5, c 5, noise 2" in out
    with h5py.File(tmp_path / "r.h5") as file:
        assert len(file["hit_table/hit_id"]) == 15
        assert file.attrs["complete"]


def test_a_bad_event_and_a_bad_file_are_listed_and_the_rest_goes_on(tmp_path, capsys):
    events, missing = write_events(tmp_path / "a.h5", [6, 9, 12], bad=1), tmp_path / "no.h5"
    told = report(capsys, events, missing, "--out", tmp_path / "r.h5", status=1)
    assert (told["ok"], told["events"], told["hits"]) == (False, 2, 18)
    reason = "hit_table/integral row 0 is 2e+06: above 1e6"
    assert told["failed"] == [
        {"event_id": [1, 2, 1], "file": str(events), "reason": reason},
        {"event_id": None, "file": str(missing), "reason": f"{missing}: no such file"},
    ]
    assert failures_in(tmp_path / "r.h5") == (2, False)


def test_a_bad_event_alone_leaves_the_results_complete(tmp_path):
    events = write_events(tmp_path / "a.h5", [6, 9], bad=1)
    assert run(events, "--out", tmp_path / "r.h5", "--quiet") == 1
    assert failures_in(tmp_path / "r.h5") == (1, True)


def write_unreadable(path: Path, fault: str) -> Path:
    write_events(path, [6])
    if fault == "text":
        path.write_text("run,subrun,event\n")
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:-1000])
    else:
        with h5py.File(path, "a") as file:
            del file[fault]
    return path


@pytest.mark.parametrize("fault", ["text", "truncated", "hit_table", "hit_table/rms"])
def test_files_that_cannot_be_read_leave_no_results_and_replace_none(fault, tmp_path, capsys):
    bad = write_unreadable(tmp_path / "bad.h5", fault)
    out = tmp_path / "r.h5"
    told = report(capsys, bad, bad, "--out", out, status=1)
    assert (told["out"], len(told["failed"])) == (None, 2)
    assert [path.name for path in tmp_path.iterdir()] == ["bad.h5"]
    out.write_text("of an earlier run")
    assert run(bad, "--event", "1,2,0", "--out", out) == 1
    assert out.read_text() == "of an earlier run"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.h5", "r.h5"]


def test_a_file_that_can_be_read_leaves_its_failures_beside_one_that_cannot(tmp_path):
    bad = write_unreadable(tmp_path / "bad.h5", "text")
    events = write_events(tmp_path / "a.h5", [6], bad=0)
    assert run(bad, events, "--out", tmp_path / "r.h5", "--quiet") == 1
    assert failures_in(tmp_path / "r.h5") == (2, False)


@pytest.mark.parametrize(
    ("flag", "last"), [("--out", "r.h5"), ("--display", "png"), ("--display", "png/")]
)
def test_a_folder_that_is_not_there_is_refused_before_a_server_is_asked(
    flag, last, tmp_path, capsys
):
    events = write_events(tmp_path / "a.h5", [3])
    assert run(events, flag, f"{tmp_path}/none/{last}") == 2
    assert capsys.readouterr() == (
        "",
        f"error: no such folder: {tmp_path / 'none'}\n"
        f"  try: mkdir -p {tmp_path / 'none'}, or another {flag}\n",
    )
    assert not (tmp_path / "none").exists()
    assert FakeTransport.endpoints == []


def test_where_nothing_was_answered_only_the_errors_are_told(tmp_path, capsys):
    missing = tmp_path / "no.h5"
    error = f"error: {missing}: no such file\n"
    assert run(missing) == 1
    assert capsys.readouterr() == ("", error)
    assert run(missing, write_events(tmp_path / "a.h5", [6], bad=0), "--quiet") == 1
    refused = "error: event 1,2,0: hit_table/integral row 0 is 2e+06: above 1e6\n"
    assert capsys.readouterr() == ("", error + refused)
    assert report(capsys, missing, status=1)["failed"][0]["reason"] == f"{missing}: no such file"


def test_only_the_wanted_events_are_sent(tmp_path, capsys):
    events = write_events(tmp_path / "a.h5", [3, 4, 5])
    assert report(capsys, events, "--event", "1,2,1")["hits"] == 4
    assert run(events, "--event", "1,2,1", "--event", "8,8,8") == 1
    assert "event 8,8,8: no such event in the files" in capsys.readouterr().out


def test_the_same_event_twice_gets_two_displays(tmp_path):
    events = write_events(tmp_path / "a.h5", [6])
    assert run(events, events, "--display", tmp_path / "png", "--quiet") == 0
    assert sorted(p.name for p in (tmp_path / "png").iterdir()) == [
        "run1_subrun2_event0_nugraph3.png",
        "run1_subrun2_event0_nugraph3_again1.png",
    ]


def test_the_running_deployment_is_asked_by_default(tmp_path, monkeypatch):
    running = {"http": "127.0.0.1:9100", "grpc": "127.0.0.1:9101"}
    monkeypatch.setattr(asked, "default_endpoint", running.get)
    events = write_events(tmp_path / "a.h5", [3])
    assert run(events) == 0
    assert {e.url for e in FakeTransport.endpoints} == {"http://127.0.0.1:9100"}
    FakeTransport.endpoints.clear()
    assert run(events, "--protocol", "grpc") == 0
    assert {e.url for e in FakeTransport.endpoints} == {"grpc://127.0.0.1:9101"}


NO_SERVER = "numlkit up, or name a server with --url"
AWAY = ClientError("no server answers at http://localhost:8000: connection refused", NO_SERVER)
EXPIRED = ClientError("the certificate expired", "renew it")


@pytest.mark.parametrize(
    ("running", "known", "told"),
    [
        (None, None, NotRunningError("no deployment is running", NO_SERVER)),
        ("localhost", None, AWAY),
        ("localhost", EXPIRED, EXPIRED),
    ],
    ids=["none is running", "it is away", "it is known what is in the way"],
)
def test_no_server_is_one_line_and_a_remedy(tmp_path, monkeypatch, capsys, running, known, told):
    monkeypatch.setattr(asked, "default_endpoint", lambda protocol: running)
    monkeypatch.setattr(FakeTransport, "away", True)
    monkeypatch.setattr(asked, "why_unreachable", lambda endpoint, *, timeout: known)
    assert run(write_events(tmp_path / "a.h5", [3]), "--out", tmp_path / "r.h5") == 1
    assert capsys.readouterr() == ("", f"error: {told.cause}\n  try: {told.remedy}\n")
    assert [endpoint.url for endpoint in FakeTransport.endpoints] == (
        ["http://localhost:8000"] if running else []
    )
    assert not (tmp_path / "r.h5").exists()


def test_blank_lines_in_a_list_of_files_name_no_file(tmp_path, capsys):
    one, other = (write_events(tmp_path / f"{name}.h5", [3]) for name in ("a", "b c"))
    (tmp_path / "files.txt").write_text(f"\n{one}\n \t\n{other}\r\n\n")
    assert report(capsys, f"@{tmp_path / 'files.txt'}")["events"] == 2


def test_a_list_names_files_alone_whatever_their_names(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = [b"\xff\xfe.h5", b"--out", b"@list"]
    for name in names:
        write_events(tmp_path / os.fsdecode(name), [3])
    (tmp_path / "list").write_bytes(b"\n".join(names))
    assert report(capsys, "@list")["events"] == 3


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "list: No such file or directory"),
        ("", "list names no file"),
        ("\n \n", "list names no"),
        ("a.h5\0b.h5\0", "list is no list of names, one on each line"),
    ],
)
def test_a_list_without_files_is_told(content, told, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        (tmp_path / "list").write_text(content)
    with pytest.raises(SystemExit) as ended:
        run("@list")
    assert ended.value.code == 2
    assert f"error: {told}" in capsys.readouterr().err


def test_a_file_that_is_left_for_another_run_is_named_once(tmp_path, capsys):
    assert run(tmp_path / "no.h5", "--into", tmp_path / "labels") == 1
    assert f"left: {tmp_path / 'no.h5'}: no such file\n" in capsys.readouterr().out


def test_files_that_are_left_and_not_named_are_counted(tmp_path, capsys):
    files = [tmp_path / f"{number}.h5" for number in range(23)]
    assert run(*files, "--into", tmp_path / "labels") == 1
    assert "\nand 3 more (--json lists all)\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda path: path.symlink_to(path.name), "Too many levels of symbolic links"),
        (os.mkfifo, "x.h5: not a file"),
    ],
    ids=["a link to itself", "a pipe"],
)
def test_what_is_no_file_is_an_error_in_a_line(make, told, tmp_path, capsys):
    make(tmp_path / "x.h5")
    assert run(tmp_path / "x.h5", "--out", tmp_path / "new.h5") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert told in line


def test_an_input_is_never_overwritten(tmp_path, capsys):
    events = write_events(tmp_path / "a.h5", [3])
    before = events.read_bytes()
    assert run(events, "--out", tmp_path / "." / "a.h5") == 1
    assert "is one of the input files" in capsys.readouterr().err
    assert events.read_bytes() == before


def test_an_interrupt_is_told_and_signals_are_as_before(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(FakeTransport, "interrupt_at", 5)
    events = write_events(tmp_path / "a.h5", [3, 4, 5, *[6] * 40])
    assert run(events, "--out", tmp_path / "r.h5", "--concurrency", 1) == 130
    assert "error: interrupted; " in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("command", [infer, evaluate])
def test_a_folder_that_names_servers_is_followed(tmp_path, monkeypatch, command):
    given = []

    def client_of(*urls: Any, **options: Any) -> NoReturn:
        given.append((urls, options["servers"]))
        raise ClientError("seen", None)

    Registry(tmp_path / "servers").enter("grpc://127.0.0.1:7")
    monkeypatch.setattr(infer, "Client", client_of)
    assert command.main([str(EVENTS), "--servers", str(tmp_path / "servers")]) == 1
    assert given == [((), tmp_path / "servers")]
