"""What is shown is what was said."""

import io
import sys

from deploy.commands import logs
from deploy.deployment.state import DeploymentFolder
from deploy.host.console import Console
from deploy.host.errors import KitError


class Terminal(io.StringIO):
    def isatty(self):
        return True


ODD = "--publish=127.0.0.1:1234:8000 a :100: b [red]\tc\a\r"


def test_a_line_that_is_piped_is_what_was_said_and_a_log_s_keeps_every_byte(capsysbinary):
    Console().line(ODD)
    assert capsysbinary.readouterr().out == f"{ODD}\n".encode()
    Console().log_line(bytes(range(256)).replace(b"\n", b""))
    assert capsysbinary.readouterr().out == bytes(range(256)).replace(b"\n", b"") + b"\n"


def test_progress_errors_and_tables_have_no_emoji(capsys):
    console = Console()
    console.say("a :100: b")
    with console.step("c :100:") as say:
        say("d :100:")
    console.error(KitError("e :100:", "f :100:\tg"))
    console.table("h :100:", ("i :100:",), [("j :100:",)])
    shown = capsys.readouterr()
    assert shown.err.splitlines()[:3] == ["a :100: b", "c :100: ...", "  d :100:"]
    assert shown.err.splitlines()[4:] == ["error: e :100:", "  try: f :100:\tg"]
    assert shown.out == "h :100:\n  i :100:\n  j :100:\n"


def test_on_a_terminal_what_would_steer_it_is_shown_escaped(capsys, monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    console = Console()
    console.line(ODD)
    console.line("\x1b[2J\u202e\x85é→")
    console.log_line(b"\x1b[2J\xff\xc3\xa9\t:100:")
    assert capsys.readouterr().out.split("\n") == [
        r"--publish=127.0.0.1:1234:8000 a :100: b [red]" + "\t" + r"c\x07\r",
        r"\x1b[2J\u202e\x85é→",
        r"\x1b[2J\xffé" + "\t:100:",
        "",
    ]


def test_a_file_that_is_shown_keeps_its_lines_on_a_terminal_too(capsys, monkeypatch):
    for terminal in (False, True):
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        Console().text("# job.sh\n#!/bin/sh\n\nexit\n\n")
        assert capsys.readouterr().out == "# job.sh\n#!/bin/sh\n\nexit\n\n"


def test_a_table_and_a_step_on_a_terminal_do_not_steer_it_either(monkeypatch):
    said = {name: Terminal() for name in ("stdout", "stderr")}
    for name, stream in said.items():
        monkeypatch.setattr(sys, name, stream)
    console = Console()
    with console.step("a\x1b]0;b") as say:
        say("c\u202e")
    console.table("d\x1b[2J", ("e\x9b",), [("f\x1b]52;c;Zw\x1b\\",)])
    shown = said["stdout"].getvalue()
    for text in (r"d\x1b[2J", r"e\x9b", r"f\x1b]52;c;Zw\x1b" + "\\"):
        assert text in shown
    assert r"a\x1b]0;b: c\u202e" in said["stderr"].getvalue()


def test_json_alone_is_shown_in_json_mode(capsys):
    console = Console("json")
    console.line("a")
    console.log_line(b"b")
    assert capsys.readouterr().out == ""


def test_a_log_is_shown_byte_by_byte(home, capsysbinary):
    log = DeploymentFolder("numl").log
    log.parent.mkdir(parents=True)
    log.write_bytes(b"a :100: b\r\n\ttab\x07\x0c\xe2\x80\xa8\xff\nlast without an end")
    for flags, shown in ((), log.read_bytes()), (("--tail", "1"), b"last without an end"):
        assert logs.main(flags) == 0
        assert capsysbinary.readouterr().out == shown + b"\n"
