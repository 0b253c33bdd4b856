"""An environment's own check of the models; a script stands for its Python."""

from pathlib import Path

import pytest

from deploy.environment.check import check_answers
from deploy.host.errors import EnvironmentSetupError, RepositoryError


def check(folder: Path) -> None:
    check_answers(folder, [], threads=1, failed="it does not work")


def answering(answer: str, status: int = 0) -> str:
    """A script in the place of Python that prints ``answer``, with its own prefix in it."""
    return f'#!/bin/sh\nprintf \'{answer}\' "$(dirname "$(dirname "$0")")"\nexit {status}\n'


def environment(folder: Path, answer: str, status: int = 0) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(f'PATH="{folder}/bin:$PATH"\n')
    (folder / "bin" / "python").write_text(answering(answer, status))
    (folder / "bin" / "python").chmod(0o755)
    return folder


def test_a_wrong_answer_is_named(tmp_path):
    wrong = '{"prefix": "%s"}\\n{"model": "nugraph3", "ok": false, "error": "wrong answer: x"}\\n'
    with pytest.raises(RepositoryError, match=r"^model nugraph3: wrong answer: x"):
        check(environment(tmp_path / "e", wrong, 1))


def test_a_python_of_the_host_does_not_count(tmp_path):
    with pytest.raises(EnvironmentSetupError, match="its bin/activate selects another"):
        check(environment(tmp_path / "e", '{"prefix": "/usr"}\\n'))


def test_the_first_exception_is_the_reason(tmp_path):
    folder = environment(tmp_path / "e", "")
    (folder / "bin" / "python").write_text(
        "#!/bin/sh\ncat >&2 <<'E'\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'x'\n\nDuring handling\n"
        "ImportError: you should not\n    try this\nE\nexit 1\n"
    )
    with pytest.raises(EnvironmentSetupError, match="ModuleNotFoundError: No module named 'x'"):
        check(folder)


def test_an_environment_that_cannot_be_activated_is_named(tmp_path):
    with pytest.raises(EnvironmentSetupError, match=r"does not work: .*bin/activate: No such file"):
        check(tmp_path)
