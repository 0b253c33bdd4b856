"""Where torch is looked for. What runs pip is replaced: no test downloads torch."""

import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from deploy.environment import install
from deploy.environment.install import TORCH_CPU_INDEX, ensure_environment
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import read_lock
from deploy.errors import EnvironmentSetupError
from deploy.paths import ENVIRONMENT_SOURCE

INTERPRETER = Interpreter(Path("/usr/bin/python3.11"), "3.11.2", Path("/lib/libpython3.11.so.1.0"))


@pytest.mark.parametrize(("flavour", "indexes"), [("cpu", [TORCH_CPU_INDEX]), ("gpu", [])])
def test_only_the_cpu_torch_is_looked_for_on_its_own_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: str, indexes: Sequence[str]
) -> None:
    asked: list[str] = []

    def run(command: Sequence[str], failed: str, line: object = None) -> None:
        if "torch" in failed:
            if "--index-url" in command:
                asked.append(command[-1])
            raise EnvironmentSetupError(f"{failed}: {len(asked)} other places")

    monkeypatch.setattr(install, "_run", run)
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", flavour)
    with pytest.raises(EnvironmentSetupError) as caught:
        ensure_environment(tmp_path, lock, INTERPRETER, ENVIRONMENT_SOURCE, lambda text: None)
    assert caught.value.cause == f"pip cannot install torch: {len(indexes)} other places"
    assert asked == indexes


@pytest.mark.parametrize("fails", ["pip cannot install torch", "pip cannot install numl_serving"])
def test_an_environment_that_cannot_be_finished_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """What pip would do is made up: a folder where the virtual environment is to be."""

    def run(command: Sequence[str], failed: str, line: object = None) -> None:
        if "venv" in command:
            (Path(command[-1]) / "lib" / "python3.11" / "site-packages").mkdir(parents=True)
        if failed == fails:
            raise EnvironmentSetupError(failed)

    monkeypatch.setattr(install, "_run", run)
    lock = read_lock(ENVIRONMENT_SOURCE / "locks", "gpu")
    with pytest.raises(EnvironmentSetupError, match=fails):
        ensure_environment(tmp_path, lock, INTERPRETER, ENVIRONMENT_SOURCE, lambda text: None)
    made = [path.name.split("-")[0] for path in (tmp_path / "environments").iterdir()]
    # What was finished before the failure stays, and is used by the next try.
    assert sorted(made) == ([".lock", "locked"] if "numl" in fails else [".lock"])


def test_an_interrupted_pip_and_what_works_below_it_are_ended() -> None:
    """What pip would do is made up: it works in a process below the one that is started."""
    below = "import time; print('started', flush=True); time.sleep(600)"
    pip = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {below!r}])"

    before = {each.pid for each in psutil.Process().children()}
    running: list[psutil.Process] = []

    def line(text: str) -> None:
        running.extend(
            each for each in psutil.Process().children(recursive=True) if each.pid not in before
        )
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        install._run([sys.executable, "-c", pip], "pip cannot work", line)
    assert len(running) == 2
    _, alive = psutil.wait_procs(running, timeout=10)
    assert not alive
