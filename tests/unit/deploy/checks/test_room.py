import resource
from pathlib import Path

import pytest

from deploy.checks.host import room_findings, temporary_findings, writable_findings
from deploy.deployment.deployment import Deployment
from deploy.engines import apptainer
from deploy.engines.apptainer import ApptainerEngine
from deploy.engines.docker import DockerEngine
from deploy.engines.leftovers import SHARED_MEMORY
from deploy.engines.local import LocalEngine
from deploy.engines.resolved import Resolved
from deploy.host import room
from deploy.host.finding import Finding
from deploy.host.paths import cache_folder
from deploy.host.room import FileSystem, Room
from tests.unit.deploy.site_repository import write_model

MB = 10**6
CACHE = Room(Path("/cache"), 300 * MB, "the environment", "set XDG_CACHE_HOME")
STATE = Room(Path("/state"), 100 * MB, "the deployment", "set XDG_STATE_HOME")
SHARED = Room(Path("/dev/shm"), 12 * MB, "the model instances", "fewer --instances")
BUILD = Room(Path("/cache"), 2000 * MB, "the image", "name another --out")


def _free(**free: int) -> list[Finding]:
    """Findings where /cache and /state are on one file system and /dev/shm is on another."""
    systems = {
        "/cache": FileSystem(1, free["disk"]),
        "/state": FileSystem(1, free["disk"]),
        "/dev/shm": FileSystem(2, free["shared"]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room, "file_system_of", lambda path: systems[str(path)])
        return list(room_findings([CACHE, STATE, SHARED], [BUILD]))


def _warning(detail: str, remedy: str) -> Finding:
    return Finding("warning", "room", detail, remedy)


def test_room_is_told_by_file_system_and_what_is_too_little_for_a_launch_is_a_problem():
    assert _free(disk=5000 * MB, shared=64 * MB) == [
        Finding("ok", "room", "5.0 GB free for /cache, /state"),
        Finding("ok", "room", "64 MB free for /dev/shm"),
    ]
    for_a_build = _free(disk=2300 * MB, shared=64 * MB)[0]
    assert for_a_build.level == "warning"
    assert "2.4 GB needed" in for_a_build.detail
    problem, shared = _free(disk=350 * MB, shared=8 * MB)
    assert problem.level == "problem"
    assert problem.detail.startswith("not enough disk space: 400 MB needed (300 MB in /cache for ")
    assert problem.remedy.endswith(" larger disk: set XDG_CACHE_HOME; set XDG_STATE_HOME")
    assert shared.level == "problem"
    assert shared.remedy == "free space there, or use a larger disk: fewer --instances"


def test_an_environment_that_is_not_made_needs_room_where_a_launch_makes_it(home):
    wanted = Resolved(Deployment(models=("nugraph3",), instances=4))
    local = {room.folder: room.bytes for room in LocalEngine(wanted).rooms()}
    assert local[cache_folder()] == 500 * MB
    assert local[SHARED_MEMORY] == 8 * MB
    for engine in (DockerEngine, ApptainerEngine):
        contained = {room.folder for room in engine(wanted).rooms()}
        assert not contained & {cache_folder(), SHARED_MEMORY}, "its containers have their own"
    gpu = LocalEngine(Resolved(Deployment(models=("nugraph3",), flavour="gpu"))).rooms()
    assert max(room.bytes for room in gpu) == 15_000 * MB


def test_the_copies_of_a_site_s_models_need_room_in_the_state_folder(home, tmp_path):
    version = write_model(tmp_path / "models", "m")
    with (version / "weights.bin").open("wb") as weights:
        weights.truncate(3000 * MB)
    wanted = Resolved(Deployment(models=("m",), models_dir=tmp_path / "models"))
    state = DockerEngine(wanted).rooms()[0]
    assert state.setting == "set XDG_STATE_HOME"
    assert state.bytes >= 3100 * MB


def test_a_folder_that_cannot_be_made_is_a_problem(tmp_path):
    (tmp_path / "file").touch()
    room = Room(tmp_path / "file" / "cache", 1, "the cache", "set XDG_CACHE_HOME")
    (problem,) = writable_findings([room, STATE])
    said = f"{tmp_path / 'file'} is not a folder: cannot put the cache there"
    assert problem == Finding("problem", "room", said, "set XDG_CACHE_HOME")
    assert [found.level for found in writable_findings([room], "warning")] == ["warning"]


def test_a_temporary_folder_that_is_not_there_is_a_problem(monkeypatch, tmp_path):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    assert not list(temporary_findings())
    monkeypatch.setenv("TMPDIR", "/no/such")
    monkeypatch.setenv("APPTAINER_TMPDIR", "/nor/this")
    assert [f.detail for f in temporary_findings()] == [
        "TMPDIR=/no/such is not a folder that can be written to",
        "APPTAINER_TMPDIR=/nor/this is not a folder that can be written to",
    ]


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({"TMPDIR": "/no/such"}, ["TMPDIR"]),
        ({"TMPDIR": "/no/such", "APPTAINER_TMPDIR": "/tmp"}, []),
        ({"APPTAINER_TMPDIR": "/no/such"}, ["APPTAINER_TMPDIR"]),
    ],
)
def test_apptainer_s_own_folder_goes_before_the_common_one(variables, named, monkeypatch):
    for variable in ("TMPDIR", "APPTAINER_TMPDIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, folder in variables.items():
        monkeypatch.setenv(variable, folder)
    assert list(ApptainerEngine(Resolved(Deployment())).launch_findings()) == [
        _warning(f"{variable}=/no/such is not a folder that can be written to", f"set {variable}")
        for variable in named
    ]


def test_a_container_with_less_shared_memory_than_its_models_need_is_a_problem():
    deployment = Deployment(instances=4, shm_size="8m")
    found = list(DockerEngine(Resolved(deployment)).launch_findings())
    assert [f.detail for f in found] == [
        "the container has 8 MB of shared memory; the model instances need 24 MB"
    ]
    assert not list(DockerEngine(Resolved(Deployment(instances=4))).launch_findings())


def test_a_host_with_too_little_shared_memory_is_warned_of_before_an_instance(monkeypatch):
    engine, look = ApptainerEngine(Resolved(Deployment(instances=4))), "file_system_of"
    monkeypatch.setattr(apptainer, look, lambda _: FileSystem(1, 24 * MB))
    assert not list(engine.launch_findings())
    monkeypatch.setattr(apptainer, look, lambda _: FileSystem(1, 4000))
    assert list(engine.launch_findings()) == [
        _warning(
            "/dev/shm of this host has 0 MB free; the model instances need 24 MB. up gives them "
            "their own, but apptainer run without --containall does not",
            "use fewer --instances, or numlkit doctor --fix if dead servers fill it",
        )
    ]


def test_shared_memory_that_the_engine_does_not_give_is_warned_of():
    deployment = Deployment(shm_size="2g")
    assert list(LocalEngine(Resolved(deployment)).launch_findings()) == [
        _warning(
            "shm_size has no effect with engine local: only a Docker container has shared memory "
            "of a chosen size",
            "--engine docker, or leave it out",
        )
    ]
    assert not list(DockerEngine(Resolved(deployment)).launch_findings())
    assert not list(LocalEngine(Resolved(Deployment())).launch_findings())


def test_a_gpu_that_is_not_there_is_left_to_its_own_check(monkeypatch):
    """The tests' host has no GPU, or the variable hides it."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    deployment = Deployment(flavour="gpu", models=("nugraph3",))
    assert LocalEngine(Resolved(deployment)).rooms()[-1].bytes == 2 * MB


@pytest.mark.parametrize(
    ("limit", "models", "wanted"),
    [
        (2 * 10**9, ("nugraph3",), "2.2 GB"),
        (3 * 10**9, ("nugraph3",), None),
        (3 * 10**9, Deployment().models, "4.0 GB"),  # its server crashes, or hangs
        (5 * 10**9, Deployment().models, None),
        (resource.RLIM_INFINITY, Deployment().models, None),
    ],
)
def test_a_shell_that_limits_virtual_memory_is_told_before_a_server_hangs(
    monkeypatch, limit, models, wanted
):
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    engine = LocalEngine(Resolved(Deployment(models=models, instances=3, flavour="cpu")))
    assert [each.detail for each in engine.launch_findings()] == [
        f"this shell limits programs to {limit / 1e9:.1f} GB of virtual memory; Triton reserves "
        f"up to {wanted} for these instances"
        for _ in range(wanted is not None)
    ]
