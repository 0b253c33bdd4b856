"""An environment's own check of the models; a script stands for its Python."""

from pathlib import Path

import pytest

from deploy.environment.check import check_answers
from deploy.host.errors import EnvironmentSetupError
from tests.programs import write_program
from tests.unit.deploy.site_repository import write_environment


def check(folder: Path) -> None:
    check_answers(folder, [], threads=1, failed="it does not work")


def test_a_python_of_the_host_does_not_count(tmp_path):
    with pytest.raises(EnvironmentSetupError, match="its bin/activate selects another"):
        check(write_environment(tmp_path / "e", '{"prefix": "/usr"}\\n'))


def test_the_first_exception_is_the_reason(tmp_path):
    folder = write_environment(tmp_path / "e")
    write_program(
        folder / "bin" / "python",
        "cat >&2 <<'E'\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'x'\n\nDuring handling\n"
        "ImportError: you should not\n    try this\nE\nexit 1",
    )
    with pytest.raises(EnvironmentSetupError, match="ModuleNotFoundError: No module named 'x'"):
        check(folder)


def test_an_environment_that_cannot_be_activated_is_named(tmp_path):
    with pytest.raises(EnvironmentSetupError, match=r"does not work: .*bin/activate: No such file"):
        check(tmp_path)
