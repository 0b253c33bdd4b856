"""What an environment is made of, and how it is made: small locks, the real pip, no network."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from deploy.environment import environment as module
from deploy.environment import sources
from deploy.environment.environment import plan_environment
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import PYTHON, TORCH_CPU_INDEX, file_of
from deploy.environment.private_python import ensure_private_python
from deploy.host import programs
from deploy.host.errors import EnvironmentSetupError
from tests.environments import ignore
from tests.programs import write_program
from tests.unit.deploy.environment.wheels import make_wheel

HOST = plan_environment("serving").interpreter  # what models run in here, which may be fetched
HERE = HOST.short_version
FOUND = Interpreter(Path(sys.executable), f"{HERE}.99", Path(sys.executable))
SITE = f"lib/python{HERE}/site-packages"
FULL = ("torch-2.13.0+cpu-py3-none-any.whl", "typing_extensions-4.16.0-py3-none-any.whl")


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A folder of wheels; the locks of a source tree with these; an empty cache."""
    return lay_out(tmp_path, monkeypatch)


def lay_out(folder: Path, patch: pytest.MonkeyPatch) -> Path:
    ensure_private_python(HOST, ignore)
    patch.setattr(module, "find_interpreter", lambda _pythons: HOST)
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    given, source = folder / "given", folder / "numl"
    data = "typing_extensions-4.16.0.data"
    extras = {
        "typing_extensions/tests/test_x.py": "",
        "typing_extensions-4.16.0.dist-info/entry_points.txt": (
            "[console_scripts]\nrun-it = typing_extensions.main:main\n"
        ),
        "typing_extensions/main.py": "def main(): import sys; print(sys.argv[1:], sys.prefix)\n",
        f"{data}/data/lib/libx.so.1": "x",
        f"{data}/scripts/old": "#!python\nprint('old')\n",
    }
    make_wheel(given, FULL[0])
    package = make_wheel(given, FULL[1], extras)
    make_wheel(given, "other-1.0-py3-none-any.whl")
    locks = source / "locks"
    locks.mkdir(parents=True)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    pin = f"typing_extensions==4.16.0 \\\n    --hash=sha256:{digest}\n"
    for flavour in ("serving", "cpu"):
        (locks / f"{flavour}.txt").write_text(pin)
        if HERE != PYTHON:
            (locks / f"{flavour}-{HERE}.txt").write_text(pin)
    (locks / "torch-cpu.txt").write_text("torch==2.13.0+cpu\n")
    (source / "numl_serving").mkdir()
    for name in ("pyproject.toml", "setup.py", "numl_serving/x.py"):
        (source / name).write_text("")
    patch.setattr(module, "ENVIRONMENT_SOURCE", source)
    patch.setattr(module, "_LOCKS", locks)
    wheel = make_wheel(folder / "own", "numl_serving-0.1.0-py3-none-any.whl")
    patch.setattr(module, "serving_wheel", lambda *_given: wheel)
    return given


@pytest.fixture(scope="module")
def relocatable(tmp_path_factory):
    """A relocatable environment, and a folder; where it was made lay modules named like others.

    These are pip and venv, and what they, or compiling, import. They leave a file if imported.
    """
    folder = tmp_path_factory.mktemp("relocatable")
    typed = folder / "typed"
    typed.mkdir()
    for name in ("pip", "venv", "json", "queue", "py_compile", "subprocess", "typing_extensions"):
        (typed / f"{name}.py").write_text(f"open({str(folder / 'imported')!r}, 'a')\n1 / 0\n")
    with pytest.MonkeyPatch.context() as patch:
        given = lay_out(folder, patch)
        patch.chdir(typed)
        patch.setenv("PYTHONPATH", ":")  # an empty entry is the current folder, too
        return plan_environment("cpu", wheels=given, relocatable=True).make(ignore), folder


def run(python: Path, *words: str, **more: str) -> str:
    return subprocess.run(
        [python, *words], capture_output=True, text=True, check=True,
        env={"PATH": os.defpath, **more},
    ).stdout.strip()  # fmt: skip


def test_an_environment_in_place_holds_what_is_locked(given):
    made = plan_environment("cpu", wheels=given).make(ignore)
    assert made.is_made
    names = {path.name for path in made.site_packages.iterdir()}
    assert {"torch", "typing_extensions", "numl_serving"} <= names
    assert "other" not in names
    assert made.libpython.is_file()
    assert (made.folder / "lib" / "libx.so.1").read_text() == "x"
    printed = run(made.python, "-c", "import sys, torch, numl_serving; print(sys.prefix)")
    assert printed == str(made.folder)
    activated = f'source "{made.folder}/bin/activate" && python -c "import sys; print(sys.prefix)"'
    assert run(Path("/bin/bash"), "-c", activated) == str(made.folder)
    scripts_run(made.folder)


def test_what_a_site_has_pip_do_for_its_users_does_not_change_what_is_made(
    given, tmp_path, monkeypatch
):
    (tmp_path / "constraints").write_text("typing_extensions==1\n")
    settings = {"NO_INDEX": "1", "FIND_LINKS": given, "CONSTRAINT": tmp_path / "constraints"}
    settings |= {"TARGET": tmp_path / "users", "PREFIX": tmp_path / "users"}
    for name, value in settings.items():
        monkeypatch.setenv(f"PIP_{name}", str(value))
    made = plan_environment("serving").make(ignore)
    assert (made.site_packages / "typing_extensions").is_dir()
    assert not (tmp_path / "users").exists()


def test_one_that_is_made_counts_as_used_and_a_change_in_numl_serving_installs_nothing_else(given):
    first = plan_environment("serving", wheels=given).make(ignore)
    before = first.folder.stat().st_ctime_ns
    for wheel in given.iterdir():
        wheel.unlink()
    lock = first.folder.with_suffix(".lock")
    os.utime(lock, (0, 0))
    assert plan_environment("serving").make(ignore).folder.stat().st_ctime_ns == before
    assert lock.stat().st_mtime > 0
    (given.parent / "numl" / "numl_serving" / "x.py").write_text("1")
    second = plan_environment("serving", wheels=given).make(ignore)
    assert second.folder != first.folder
    assert second.packages == first.packages
    one, other = (e.site_packages / "typing_extensions/main.py" for e in (first, second))
    assert one.samefile(other)


def test_an_environment_is_made_where_no_folders_share_hard_links(given, monkeypatch):
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), source, None, target)

    monkeypatch.setattr(os, "link", refuse)
    scripts_run(plan_environment("serving", wheels=given).make(ignore).folder)


def scripts_run(folder: Path) -> None:
    """Its scripts run the Python beside them."""
    assert run(folder / "bin" / "run-it", "a b") == f"['a b'] {folder}"
    assert run(folder / "bin" / "old") == "old"


def names_no_place(folder: Path, place: Path) -> None:
    """Nothing in it names the place where it was made."""
    for path in folder.rglob("*"):
        if path.is_file():
            assert str(place).encode() not in path.read_bytes(), path


def test_a_relocatable_environment_stands_alone_and_names_no_other_place(relocatable):
    made, folder = relocatable
    assert not (folder / "imported").exists(), "what lies where a command is typed"
    assert (made.folder / "conda-meta" / "history").is_file()
    assert not (made.folder / "pyvenv.cfg").exists()
    assert not (made.site_packages / "typing_extensions" / "tests").exists()
    assert (made.folder / "bin" / f"python{HERE}").is_file()
    assert made.glibc[0] == 2
    names_no_place(made.folder, folder)
    # lib64 is a link to lib where the host's Python looks into that.
    code = "import os, ssl, sys, numl_serving as n; print(sys.prefix, os.path.realpath(n.__file__))"
    assert run(made.python, "-c", code).startswith(f"{made.folder} {made.folder}/{SITE}")
    listed = run(made.python, "-c", "from importlib.metadata import version as v; "
                 "print(v('typing_extensions'), v('numl_serving'))")  # fmt: skip
    assert listed == "4.16.0 0.1.0"
    moved = made.folder.rename(made.folder.parent / "moved to")
    scripts_run(moved)
    moved.rename(made.folder)


def test_the_packages_of_a_sites_environment_are_kept_whole(given, monkeypatch):
    """Packages read stubs, as lazy_loader does, headers, or data of their tests."""
    compiled = Mock()  # what takes longest is compiled for another test
    monkeypatch.setattr(module, "compile_modules", compiled)
    files = {
        f"other/{name}": "x"
        for name in ("__init__.pyi", "x.h", "x.c", "x.pyx", "tests/test_x.py", "include/x.hpp")
    }
    files |= {f"{name}/x.py": "" for name in ("triton", "torch/test", "torch/include")}
    files |= {f"other-1.0.data/data/{name}": "x" for name in ("share/x/x.json", "bin/mpirun")}
    files["other-1.0.dist-info/entry_points.txt"] = "[console_scripts]\nother = other:main\n"
    wheel = make_wheel(given, "other-1.0-py3-none-any.whl", files)
    source = (given.parent / "numl").rename(given.parent / "site")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    lock = file_of(source / "locks", "cpu", HERE)
    lock.write_text(f"other==1.0 \\\n    --hash=sha256:{digest}\n")
    planned = plan_environment("cpu", source=source, wheels=given, relocatable=True)
    made = planned.make(ignore)
    for name in files:
        data = name.partition(".data/data/")[2]
        assert (made.folder / data if data else made.site_packages / name).is_file(), name
    assert not (made.folder / "lib" / f"python{HERE}" / "idlelib").exists()
    assert "test_x.py" in {path.name for path in compiled.call_args_list[0].args[1]}
    record = (made.site_packages / "other-1.0.dist-info" / "RECORD").read_text()
    assert "other/x.h," in record
    assert "../../../bin/other,,\n" in record, "the same wherever it was installed"
    names_no_place(made.folder, given.parent)


def test_one_of_the_kits_environments_is_another_than_a_sites_with_the_same_lock(
    given, monkeypatch
):
    source = given.parent / "numl"
    whole = plan_environment("cpu", source=source, relocatable=True)
    monkeypatch.setattr(sources, "CHECKOUT", given.parent)
    (given.parent / "envs").symlink_to(given.parent)
    slim = plan_environment("cpu", source=source, relocatable=True)
    assert (whole.whole, slim.whole) == (True, False)
    assert whole.folder != slim.folder
    assert whole.packages != slim.packages


def test_an_environment_with_a_dot_in_its_name_is_made(given):
    """Its folder and its packages have locks of their own, which are held together."""
    source = (given.parent / "numl").rename(given.parent / "vision-1.5")
    planned = plan_environment("serving", source=source, wheels=given)
    making = threading.Thread(target=planned.make, args=[ignore], daemon=True)
    making.start()
    making.join(60)
    assert planned.is_made
    for folder in (planned.folder, planned.packages):
        assert folder.with_name(f"{folder.name}.lock").is_file()


@pytest.mark.parametrize(
    ("flavour", "spoil", "reason"),
    [
        ("serving", "hash", r"packages: typing_extensions==4\.16\.0 is not the locked file"),
        ("serving", "missing", "cannot install the locked packages: .*typing_extensions==4.16.0"),
        ("cpu", "torch", "pip cannot install torch: .*torch==2.13.0"),
    ],
)
def test_what_cannot_be_had_is_named_in_one_line_and_leaves_nothing(given, flavour, spoil, reason):
    if spoil == "hash":
        make_wheel(given, FULL[1])
    else:
        (given / FULL[1 if spoil == "missing" else 0]).unlink()
    planned = plan_environment(flavour, wheels=given)
    with pytest.raises(EnvironmentSetupError, match=reason) as caught:
        planned.make(ignore)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy == f"put the locked wheels into {given}"
    assert [p for p in planned.folder.parent.iterdir() if p.suffix != ".lock"] == []


@pytest.mark.parametrize("fails", ["install_lock", "serving_wheel"])
def test_one_that_cannot_be_finished_is_not_left_behind(given, monkeypatch, fails):
    monkeypatch.setattr(module, fails, Mock(side_effect=KeyboardInterrupt))
    planned = plan_environment("serving", wheels=given)
    with pytest.raises(KeyboardInterrupt):
        planned.make(ignore)
    left = [path for path in planned.folder.parent.iterdir() if path.suffix != ".lock"]
    # What was finished before the failure stays, and is used by the next try.
    assert left == ([planned.packages] if fails == "serving_wheel" else [])


def test_what_a_killed_pip_leaves_goes_with_it(given, monkeypatch):
    """A script stands for a pip that is killed while it downloads."""
    told, script = given.parent / "told", given.parent / "pip"
    script.write_text(f'touch "$TMPDIR/pip-unpack"; echo "$TMPDIR" >{told}; kill -KILL $$\n')
    monkeypatch.setattr(programs, "PIP", ("sh", str(script)))
    planned = plan_environment("cpu", wheels=given)
    with pytest.raises(EnvironmentSetupError, match="pip cannot install torch: exit status -9"):
        planned.make(ignore)
    assert Path(told.read_text().strip()).is_relative_to(planned.folder.parent)
    assert {path.suffix for path in planned.folder.parent.iterdir()} == {".lock"}


@pytest.mark.parametrize(("flavour", "indexes"), [("cpu", [TORCH_CPU_INDEX]), ("gpu", [])])
def test_only_the_cpu_torch_is_looked_for_on_its_own_index(tmp_path, monkeypatch, flavour, indexes):
    """What runs pip is replaced: no test downloads torch."""
    asked: list[str] = []

    def fail(command: Sequence[str], *, failed: str, **_more: Any) -> None:
        if "--index-url" in command:
            asked.append(command[-1])
        raise EnvironmentSetupError(f"{failed}: {len(asked)} other places")

    locked_for = Interpreter(Path(sys.executable), "3.11.99", Path(sys.executable))
    monkeypatch.setattr(module, "find_interpreter", lambda _pythons: locked_for)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(programs, "run", fail)
    with pytest.raises(EnvironmentSetupError) as caught:
        plan_environment(flavour).make(ignore)
    named = "".join(f" from {index}" for index in indexes)
    assert caught.value.cause == f"pip cannot install torch{named}: {len(indexes)} other places"
    assert asked == indexes


def test_the_digest_names_the_inputs(given):
    first = plan_environment("cpu")
    assert plan_environment("cpu", wheels=given).digest == first.digest
    assert plan_environment("serving").digest != first.digest
    assert plan_environment("cpu", relocatable=True).digest != first.digest
    assert first.folder.name == f"cpu-{first.digest[:16]}"


def test_a_python_that_is_given_is_taken(given):
    planned = plan_environment("serving", python=HOST.executable)
    assert planned.interpreter.version == HOST.version
    assert planned.interpreter.libpython.name == f"libpython{HERE}.so.1.0"
    assert planned.interpreter.executable.resolve() == HOST.executable.resolve()


@pytest.mark.parametrize(("text", "reason"), [
    (None, r"python3\.11 is not a working Python"),
    ("exit 1", "is not a working Python"),
    ("echo hello", "is not a working Python"),
    ("""echo '["3.9.1", "/p", "/usr", "/lib", "", ""]'""", rf"is Python 3\.9\.1; .* for .*{HERE}"),
    (f"""echo '["{HERE}.1", "/p", "/n", "/n", "libpython.so.0", "n"]'""",
     r"has no shared libpython,"),
])  # fmt: skip
def test_a_python_that_is_given_must_be_fit(given, text, reason):
    """A script stands for a Python that this host does not have."""
    python = given / "python3.11"
    if text is not None:
        write_program(python, text)
    with pytest.raises(EnvironmentSetupError, match=reason):
        plan_environment("serving", python=python)


def test_a_folder_of_wheels_must_be_there(given):
    with pytest.raises(EnvironmentSetupError, match="nowhere: no such folder"):
        plan_environment("serving", wheels=given / "nowhere")


def private_at(folder: Path) -> Interpreter:
    return Interpreter(folder / "bin" / "python", "3.11.15", folder / "libpython", ("3.11",))


@pytest.mark.parametrize(
    ("on_host", "relocatable", "fetched", "taken"),
    [
        (True, False, True, "host"),
        (False, False, False, "private"),
        (True, True, True, "private"),
        (True, True, False, "host"),
    ],
)
def test_the_private_python_is_for_hosts_without_one_and_for_what_goes_elsewhere(
    given, monkeypatch, on_host, relocatable, fetched, taken
):
    private = private_at(given.parent / "python" / "3.11.15-abc")
    if fetched:
        private.executable.parent.mkdir(parents=True)
        private.executable.touch()
    monkeypatch.setattr(module, "private_python", lambda _pythons: private)
    monkeypatch.setattr(module, "find_interpreter", lambda _pythons: FOUND if on_host else None)
    planned = plan_environment("serving", relocatable=relocatable)
    assert planned.interpreter == (private if taken == "private" else FOUND)


def test_with_wheels_given_nothing_is_fetched(given, monkeypatch):
    private = private_at(given.parent / "nowhere")
    monkeypatch.setattr(module, "private_python", lambda _pythons: private)
    monkeypatch.setattr(module, "find_interpreter", lambda _pythons: None)
    with pytest.raises(EnvironmentSetupError, match=r"no Python .* with its shared library"):
        plan_environment("serving", wheels=given)
