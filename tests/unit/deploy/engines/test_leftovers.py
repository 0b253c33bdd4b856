import os
import subprocess
import sys
import uuid
from pathlib import Path

import psutil
import pytest

from deploy.deployment.state import DeploymentFolder, ProcessId, Surroundings
from deploy.engines import leftovers
from deploy.engines.leftovers import (
    backend_processes,
    scratch_folders,
    scratch_since,
    shared_memory_regions,
    shm_prefix,
    sweep,
)
from tests.unit.deploy.deployment.test_state import make_state

UUID = "0764797d-130d-4b3f-bf06-8b8b9c1baf32"
OLD, OWN, ANOTHER = (Path(f"/tmp/python_env_{name}") for name in ("old", "own", "another"))
EARLIER, SERVER, RIVAL = (ProcessId(pid=pid, started=1) for pid in (1, 2, 3))
BEFORE = Surroundings(folders=(OLD,), processes=(EARLIER,))


@pytest.fixture
def there(monkeypatch, tmp_path):
    """The scratch folders and backends that there are now."""
    found: dict[str, set[object]] = {"folders": {OLD, OWN}, "processes": {EARLIER, SERVER}}
    monkeypatch.setattr(leftovers, "scratch_folders", lambda: found["folders"])
    monkeypatch.setattr(leftovers, "backend_processes", lambda: found["processes"])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return found


def test_only_regions_of_this_very_deployment_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    own = tmp_path / f"numlkit-0-a-{UUID}"
    for path in (
        own,
        tmp_path / f"numlkit-0-a-b-{UUID}",  # a deployment named a-b
        tmp_path / f"numlkit-1-a-{UUID}",  # another user's
        tmp_path / "numlkit-0-a-notes.txt",
        tmp_path / f"triton_python_backend_shm_region_{UUID}",
    ):
        path.touch()
    assert shared_memory_regions("numlkit-0-a-") == (own,)


def test_scratch_folders_are_folders_not_links(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SCRATCH", tmp_path)
    folder = tmp_path / "python_env_aB3xYz"
    folder.mkdir()
    (tmp_path / "python_env_linked").symlink_to(folder)
    (tmp_path / "python_env_linkAB").symlink_to(folder)
    (tmp_path / "python_env_fileAB").touch()
    assert scratch_folders() == {folder}


def test_a_folder_that_a_person_named_or_filled_is_no_scratch_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SCRATCH", tmp_path)
    of_triton, named, filled, found_twice = (
        tmp_path / f"python_env_{name}" for name in ("aB3xYz", "of_my_thesis", "thesis", "abc123")
    )
    for folder in (of_triton / "0" / "bin", named, filled / "0", found_twice / "0"):
        folder.mkdir(parents=True)
    (filled / "chapter1.tex").touch()
    assert scratch_folders() == {of_triton, found_twice}
    (found_twice / "notes.txt").touch()  # since it was found
    sweep(prefix="numlkit-test-", scratch=(of_triton, named, filled, found_twice))
    assert not of_triton.exists()
    assert named.exists()
    assert filled.exists()
    assert found_twice.exists()


def test_regions_are_named_after_the_state_folder_too(tmp_path):
    folders = [tmp_path / state / ("n" * 40) for state in ("a", "b")]
    prefixes = {shm_prefix(folder) for folder in folders}
    assert len(prefixes) == 2
    assert all(len(f"{prefix}{UUID}") < 150 for prefix in prefixes)
    (tmp_path / "link").symlink_to(tmp_path / "a")
    assert shm_prefix(tmp_path / "link" / "x") == shm_prefix(tmp_path / "a" / "x")


def test_a_folder_made_since_a_server_s_start_is_that_server_s(there):
    assert scratch_since(BEFORE, SERVER) == {OWN}
    there["processes"].remove(SERVER)
    assert scratch_since(BEFORE, SERVER) == {OWN}, "dead, it leaves it behind"


def test_no_folder_is_taken_that_another_living_process_may_have_made(there):
    there["folders"].add(ANOTHER)
    there["processes"].add(RIVAL)
    assert scratch_since(BEFORE, SERVER) == frozenset()
    there["processes"].remove(RIVAL)
    assert scratch_since(BEFORE, SERVER) == {OWN, ANOTHER}, "what nobody alive can need"


def test_a_folder_that_another_deployment_knows_for_its_own_is_left_to_it(there):
    there["folders"].add(ANOTHER)
    there["processes"].add(RIVAL)
    state = make_state("a", server=RIVAL, scratch=(ANOTHER,))
    DeploymentFolder("a").write_state(state)
    broken = DeploymentFolder("broken")
    broken.path.mkdir()
    broken.state_file.write_text("{")
    assert scratch_since(BEFORE, SERVER) == {OWN}
    there["processes"].remove(RIVAL)
    assert scratch_since(BEFORE, SERVER) == {OWN}, "dead or alive"


def test_a_process_that_has_loaded_the_backend_is_found_and_what_it_forks_is_not(tmp_path):
    library = tmp_path / "libtriton_python.so"
    library.write_bytes(b"x" * 4096)
    code = (
        "import mmap, sys; f = open(sys.argv[1]);"
        "m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ);"
        "import os; child = os.fork();"
        "print(child, flush=True) if child else None; sys.stdin.read(); child and os.wait()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(library)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    child = ProcessId.of(int(process.stdout.readline()))
    found, identity = backend_processes(), ProcessId.of(process.pid)
    assert identity in found
    assert not found & {child, ProcessId.of(os.getpid())}
    process.communicate()
    assert identity not in backend_processes()


def test_a_stub_that_waits_for_a_server_that_is_gone_is_ended_and_another_s_is_not(tmp_path):
    """A shell that waits stands for the stub: it has a stub's command line."""
    script = tmp_path / "model.py"
    script.write_text("read _")
    regions = (f"numlkit-test-{uuid.uuid4()}", f"numlkit-test-other-{uuid.uuid4()}")
    stubs = [
        subprocess.Popen(
            ["/backends/python/triton_python_backend_stub", str(script), region],
            executable="/bin/sh",
            stdin=subprocess.PIPE,
        )
        for region in regions
    ]
    try:
        sweep(prefix="numlkit-test-", scratch=())
        assert not psutil.pid_exists(stubs[0].pid)
        assert stubs[1].poll() is None
    finally:
        for stub in stubs:
            stub.kill()
            stub.wait()


def test_a_shell_that_is_about_to_become_a_stub_is_ended_like_one(tmp_path):
    """Triton starts a stub by way of a shell, which activates its environment first."""
    region = f"numlkit-test-{uuid.uuid4()}"
    stub = f"/backends/python/triton_python_backend_stub {tmp_path}/model.py {region} 1048576"
    with subprocess.Popen(
        ["bash", "-c", f"read _ && exec env A=b {stub}"], stdin=subprocess.PIPE
    ) as shell:
        try:
            sweep(prefix="numlkit-test-", scratch=())
            assert shell.poll() is not None
        finally:
            shell.kill()


def test_another_user_s_regions_and_stubs_are_not_ours(tmp_path, monkeypatch):
    monkeypatch.setattr(leftovers, "SHARED_MEMORY", tmp_path)
    (tmp_path / f"numlkit-0-a-{UUID}").touch()
    assert shared_memory_regions("numlkit-0-a-")
    monkeypatch.setattr(os, "getuid", lambda: 65534)
    assert not shared_memory_regions("numlkit-0-a-")
