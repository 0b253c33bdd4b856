"""Processes stand for servers and stubs by their names, files for shared memory."""

import mmap
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from deploy.deployment.state import DeploymentFolder, ProcessId, Surroundings
from deploy.engines import leftovers
from deploy.engines.leftovers import (
    backend_processes,
    end_stubs,
    leftover_findings,
    orphaned_stubs,
    remove_regions,
    scratch_folders,
    scratch_since,
    shared_memory_regions,
    shm_prefix,
    sweep,
    unused_regions,
)
from deploy.host.errors import KitError
from tests.kit import until
from tests.programs import running, started
from tests.unit.deploy.deployment.test_state import make_state

# Of this run: others on this host may look at the same processes.
UUID, OTHER = (str(uuid.uuid4()) for _ in range(2))
SWEPT = f"numlkit-test-{os.getpid()}-"
PREFIX = f"numlkit-{os.getuid()}-0a1b2c3d"
REGION = f"{PREFIX}-numl-{UUID}"
OLD, OWN, ANOTHER = (Path(f"/tmp/python_env_{name}") for name in ("old", "own", "another"))
EARLIER, SERVER, RIVAL = (ProcessId(pid=pid, started=1) for pid in (1, 2, 3))
BEFORE = Surroundings(folders=(OLD,), processes=(EARLIER,))


def set_what_is_there(
    patch: pytest.MonkeyPatch, folders: set[Path], processes: set[ProcessId]
) -> None:
    patch.setattr(leftovers, "scratch_folders", lambda: folders)
    patch.setattr(leftovers, "backend_processes", lambda: processes)


@pytest.fixture
def shared(tmp_path, monkeypatch):
    """A folder that stands for shared memory."""
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path / "shm")
    return tmp_path / "shm"


def test_only_regions_of_this_very_deployment_and_user_are_found(shared, monkeypatch):
    own = shared / f"numlkit-0-a-{UUID}"
    for path in (
        own,
        shared / f"numlkit-0-a-b-{UUID}",  # a deployment named a-b
        shared / f"numlkit-1-a-{UUID}",  # another user's
        shared / "numlkit-0-a-notes.txt",
        shared / f"triton_python_backend_shm_region_{UUID}",
    ):
        path.touch()
    assert shared_memory_regions("numlkit-0-a-") == (own,)
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    assert not shared_memory_regions("numlkit-0-a-")


def test_only_folders_that_are_named_and_filled_as_triton_does_are_scratch_folders(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(leftovers, "SCRATCH", tmp_path)
    of_triton, named, filled, found_twice, linked, file = (
        tmp_path / f"python_env_{name}"
        for name in ("aB3xYz", "of_my_thesis", "thesis", "abc123", "linkAB", "fileAB")
    )
    for folder in (of_triton / "0" / "bin", named, filled / "0", found_twice / "0"):
        folder.mkdir(parents=True)
    (filled / "chapter1.tex").touch()
    linked.symlink_to(of_triton)
    file.touch()
    assert scratch_folders() == {of_triton, found_twice}
    (found_twice / "notes.txt").touch()  # since it was found
    sweep(prefix=SWEPT, scratch=(of_triton, named, filled, found_twice, linked, file))
    assert {*tmp_path.glob("python_env_*")} == {named, filled, found_twice, linked, file}


def test_regions_are_named_after_the_state_folder_too(tmp_path):
    folders = [tmp_path / state / ("n" * 40) for state in ("a", "b")]
    prefixes = {shm_prefix(folder) for folder in folders}
    assert len(prefixes) == 2
    assert all(len(f"{prefix}{UUID}") < 150 for prefix in prefixes)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert shm_prefix(tmp_path / "link" / "x") == shm_prefix(tmp_path / "a" / "x")


@pytest.mark.parametrize(
    ("folders", "processes", "own"),
    [
        ({OLD, OWN}, {EARLIER, SERVER}, {OWN}),
        ({OLD, OWN}, {EARLIER}, {OWN}),
        ({OLD, OWN, ANOTHER}, {EARLIER, SERVER, RIVAL}, set()),
        ({OLD, OWN, ANOTHER}, {EARLIER, SERVER}, {OWN, ANOTHER}),
    ],
    ids=["alive", "dead, it leaves it behind", "a rival may have made one", "nobody else is alive"],
)
def test_a_folder_made_since_a_server_s_start_is_its_own_if_nobody_else_can_have_made_it(
    monkeypatch, folders, processes, own
):
    set_what_is_there(monkeypatch, folders, processes)
    assert scratch_since(BEFORE, SERVER) == own


@pytest.mark.parametrize("more", [{RIVAL}, set()], ids=["alive", "dead"])
def test_a_folder_that_another_deployment_knows_for_its_own_is_left_to_it(monkeypatch, more):
    set_what_is_there(monkeypatch, {OLD, OWN, ANOTHER}, {EARLIER, SERVER} | more)
    DeploymentFolder("a").write_state(make_state("a", server=RIVAL, scratch=(ANOTHER,)))
    broken = DeploymentFolder("broken")
    broken.path.mkdir()
    broken.state_file.write_text("{")
    assert scratch_since(BEFORE, SERVER) == {OWN}


def test_a_process_that_has_loaded_the_backend_is_found_and_what_it_forks_is_not(tmp_path):
    library = tmp_path / "libtriton_python.so"
    library.write_bytes(b"x" * 4096)
    code = (
        "import mmap, sys; f = open(sys.argv[1]);"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "import os; child = os.fork();"
        "print(child, flush=True) if child else None; sys.stdin.read(); child and os.wait()"
    )
    with running(sys.executable, "-c", code, str(library)) as process:
        child = ProcessId.of(int(process.stdout.readline()))
        found, identity = backend_processes(), ProcessId.of(process.pid)
        assert identity in found
        assert not found & {child, ProcessId.of(os.getpid())}
    assert identity not in backend_processes()


def test_a_stub_that_waits_for_a_server_that_is_gone_is_ended_and_another_s_is_not(tmp_path):
    """A shell that waits stands for the stub: it has a stub's command line."""
    script = tmp_path / "model.py"
    script.write_text("read _")
    words = ["/backends/python/triton_python_backend_stub", str(script)]
    own, another = (f"{SWEPT}{more}{UUID}" for more in ("", "other-"))
    with (
        running(*words, own, executable="/bin/sh") as orphan,
        running(*words, another, executable="/bin/sh") as stub,
    ):
        sweep(prefix=SWEPT, scratch=())
        assert not psutil.pid_exists(orphan.pid)
        assert stub.poll() is None


def test_a_shell_that_is_about_to_become_a_stub_is_ended_like_one(tmp_path):
    """Triton starts a stub by way of a shell, which activates its environment first."""
    stub = f"/backends/python/triton_python_backend_stub {tmp_path}/model.py {SWEPT}{UUID} 1048576"
    with running("bash", "-c", f"read _ && exec env A=b {stub}") as shell:
        sweep(prefix=SWEPT, scratch=())
        assert shell.poll() is not None


def make_region(folder: Path, name: str = REGION, age: float = 3600) -> Path:
    path = folder / name
    path.write_bytes(bytes(4096))
    os.utime(path, (time.time() - age,) * 2)
    return path


@contextmanager
def mapped(path: Path) -> Iterator[ProcessId]:
    """Have a file in this process's memory."""
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        yield ProcessId.of(os.getpid())


def test_regions_that_no_process_has_in_its_memory_are_nobody_s(shared):
    dead = make_region(shared)
    of_an_image = make_region(shared, f"{PREFIX}-{UUID}")
    alive = make_region(shared, f"{PREFIX}-numl-{OTHER}")
    for name, age in (
        (f"{PREFIX}-young-{UUID}", 5),
        (f"numlkit-{os.getuid() + 1}-0a1b2c3d-numl-{UUID}", 3600),
        (f"triton_python_backend_shm_region_{UUID}", 3600),
        (f"{PREFIX}-notes.txt", 3600),
    ):
        make_region(shared, name, age)
    with mapped(alive):
        assert set(unused_regions()) == {of_an_image, dead}
    assert set(unused_regions()) == {of_an_image, dead, alive}


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_region_of_another_user_is_never_taken_for_one_s_own(shared):
    os.chown(make_region(shared), 12345, -1)
    assert unused_regions() == ()


def test_a_region_that_another_process_has_in_its_memory_is_in_use(shared):
    region = shared / REGION
    shutil.copy(shutil.which("sleep"), region)  # a program is in the memory of who runs it
    os.utime(region, (time.time() - 3600,) * 2)
    with started(region, 600) as process:
        until(lambda: str(region) in Path(f"/proc/{process.pid}/maps").read_text(), "its start")
        assert unused_regions() == ()
    assert unused_regions() == (region,)


def test_if_one_process_does_not_tell_what_it_uses_no_region_is_nobody_s(shared, monkeypatch):
    make_region(shared)
    monkeypatch.setattr(leftovers, "_maps_of_this_user", lambda without: iter([b"", None]))
    assert unused_regions() == ()


def test_removing_regions_looks_again(shared):
    dead, revived = make_region(shared), make_region(shared, f"{PREFIX}-numl-{OTHER}")
    with mapped(revived), pytest.raises(KitError, match=f"{revived} is in use again"):
        remove_regions((dead, revived))
    assert not dead.exists()
    assert revived.exists()
    assert remove_regions((dead, revived)) == f"removed 2 shared memory regions from {shared}"
    assert not revived.exists()


@contextmanager
def stub(folder: Path, *, parent: str) -> Iterator[ProcessId]:
    """Run a process that looks like a stub, below one with the name ``parent``."""
    folder.mkdir()
    for name in (parent, "triton_python_backend_stub"):
        shutil.copy("/bin/sh", folder / name)
    script = folder / "model_repository" / "nugraph3" / "1" / "model.py"
    script.parent.mkdir(parents=True)
    script.write_text("echo $$\nread nothing\n")
    words = [str(folder / "triton_python_backend_stub"), str(script), REGION]
    with running(str(folder / parent), "-c", '"$0" "$@"; true', *words) as process:
        yield ProcessId.of(int(process.stdout.readline()))


def test_a_stub_is_ended_if_its_server_is_dead_and_else_left_alone(tmp_path):
    with stub(tmp_path / "live", parent="tritonserver") as process:
        assert process not in orphaned_stubs()
    with stub(tmp_path / "dead", parent="somebody") as process:
        assert process in orphaned_stubs()
        assert end_stubs((process,)) == "stopped 1 model process without a server"
        assert process.process() is None


def test_what_only_an_orphaned_stub_uses_is_nobody_s(shared, monkeypatch):
    region = make_region(shared)
    with mapped(region) as process:
        assert unused_regions() == ()
        monkeypatch.setattr(leftovers, "orphaned_stubs", lambda: (process,))
        assert unused_regions() == (region,)


@pytest.mark.parametrize("all_seen", [True, False])
def test_what_is_found_can_be_fixed_only_where_all_processes_are_seen(
    shared, monkeypatch, all_seen
):
    region = make_region(shared)
    monkeypatch.setattr(leftovers, "orphaned_stubs", lambda: ())
    monkeypatch.setattr(leftovers, "unused_regions", lambda: (region,))
    monkeypatch.setattr(leftovers, "sees_all_processes", lambda: all_seen)
    assert [f.fix is not None for f in leftover_findings()] == [all_seen]


def test_scratch_folders_that_no_deployment_knows_are_left_to_their_owner(
    shared, tmp_path, monkeypatch
):
    """They may be those of a Triton that is not the kit's, and of another checkout's kit."""
    monkeypatch.setattr(leftovers, "SCRATCH", tmp_path)
    (tmp_path / "python_env_aB3xYz" / "0").mkdir(parents=True)
    monkeypatch.setattr(leftovers, "orphaned_stubs", lambda: ())
    assert list(leftover_findings()) == []
