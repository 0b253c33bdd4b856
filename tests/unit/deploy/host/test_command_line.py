import subprocess

import pytest

from deploy.host.command_line import quote


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
def test_a_word_stays_on_one_line_and_the_shell_reads_it_back(word: str, quoted: str) -> None:
    assert quote(word) == quoted
    assert quoted.isprintable()
    done = subprocess.run(
        ["/bin/bash", "-c", f"printf %s {quoted}"], capture_output=True, check=True
    )
    assert done.stdout == word.encode(errors="surrogateescape")
