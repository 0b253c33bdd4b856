"""Where torch is looked for. What runs pip is replaced: no test downloads torch."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.environment import install, pip
from deploy.environment.install import ensure_environment
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import Flavour, read_lock
from deploy.environment.pip import TORCH_CPU_INDEX
from deploy.errors import EnvironmentSetupError
from deploy.paths import ENVIRONMENT_SOURCE

INTERPRETER = Interpreter(Path("/usr/bin/python3.11"), "3.11.2", Path("/lib/libpython3.11.so.1.0"))


def make_virtual_environment(command: Sequence[str], **_more: Any) -> None:
    (Path(command[-1]) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)


@pytest.mark.parametrize(("flavour", "indexes"), [("cpu", [TORCH_CPU_INDEX]), ("gpu", [])])
def test_only_the_cpu_torch_is_looked_for_on_its_own_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: Flavour, indexes: Sequence[str]
) -> None:
    asked: list[str] = []

    def run(command: Sequence[str], *, failed: str, **_more: Any) -> None:
        if "torch" in failed:
            if "--index-url" in command:
                asked.append(command[-1])
            raise EnvironmentSetupError(f"{failed}: {len(asked)} other places")

    monkeypatch.setattr(install, "run", make_virtual_environment)
    monkeypatch.setattr(pip, "run", run)
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", flavour)
    with pytest.raises(EnvironmentSetupError) as caught:
        ensure_environment(tmp_path, lock, INTERPRETER, ENVIRONMENT_SOURCE, lambda text: None)
    assert caught.value.cause == f"pip cannot install torch: {len(indexes)} other places"
    assert asked == indexes


@pytest.mark.parametrize("fails", ["pip cannot install torch", "pip cannot install numl_serving"])
def test_an_environment_that_cannot_be_finished_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def run(command: Sequence[str], *, failed: str, **_more: Any) -> None:
        if failed == fails:
            raise EnvironmentSetupError(failed)

    monkeypatch.setattr(install, "run", make_virtual_environment)
    monkeypatch.setattr(install, "serving_wheel", lambda *_given: tmp_path / "numl_serving.whl")
    monkeypatch.setattr(pip, "run", run)
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", "gpu")
    with pytest.raises(EnvironmentSetupError, match=fails):
        ensure_environment(tmp_path, lock, INTERPRETER, ENVIRONMENT_SOURCE, lambda text: None)
    made = [path.name.split("-")[0] for path in (tmp_path / "environments").iterdir()]
    # What was finished before the failure stays, and is used by the next try.
    assert sorted(made) == ([".lock", "locked"] if "numl" in fails else [".lock"])
