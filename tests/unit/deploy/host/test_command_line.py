import subprocess

import pytest

from deploy.host import command_line
from deploy.host.command_line import for_this_user, quote


@pytest.mark.parametrize(
    ("word", "quoted"),
    [
        ("--name", "--name"),
        ("a b", "'a b'"),
        ("it's", "'it'\"'\"'s'"),
        ("é", "'é'"),
        ("a\ntouch b", r"$'a\x0atouch b'"),
        ("\x1b'\\", r"$'\x1b\'\\'"),
        ("\udcff\u202e", r"$'\xff\xe2\x80\xae'"),
    ],
)
def test_a_word_stays_on_one_line_and_the_shell_reads_it_back(word, quoted):
    assert quote(word) == quoted
    assert quoted.isprintable()
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True
    )
    assert done.stdout == word.encode(errors="surrogateescape")


@pytest.mark.parametrize(("user", "there", "said"), [
    (0, {"sudo"}, "start it (systemctl start docker), or: dnf install a && dnf install b"),
    (0, set(), "start it (systemctl start docker), or: dnf install a && dnf install b"),
    (1000, {"sudo"},
     "start it (sudo systemctl start docker), or: sudo dnf install a && sudo dnf install b"),
    (1000, set(), "start it (as root: systemctl start docker), or: "
     "as root: dnf install a && dnf install b"),
])  # fmt: skip
def test_sudo_is_named_only_to_those_who_need_it_and_have_it(monkeypatch, user, there, said):
    monkeypatch.setattr(command_line.os, "geteuid", lambda: user)
    monkeypatch.setattr(command_line.shutil, "which", lambda name: name if name in there else None)
    text = "start it (sudo systemctl start docker), or: sudo dnf install a && sudo dnf install b"
    assert for_this_user(text) == said


def test_a_user_for_whom_root_types_is_a_placeholder(monkeypatch):
    monkeypatch.setattr(command_line.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(command_line.shutil, "which", lambda _name: None)
    assert for_this_user("sudo usermod -aG docker $USER") == "as root: usermod -aG docker USER"


def test_a_file_named_sudo_keeps_its_name(monkeypatch):
    monkeypatch.setattr(command_line.os, "geteuid", lambda: 0)
    for text in ("ls /etc/sudo is", "a not-sudo word", "sudo -u bob ls", "cat $USERNAME"):
        assert for_this_user(text) == text
