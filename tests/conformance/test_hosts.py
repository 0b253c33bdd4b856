"""Hosts on which something is short, taken, broken, or somebody else's."""

import json
import os
import stat
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from deploy.engines.leftovers import SHARED_MEMORY
from deploy.environment.environment import plan_environment
from deploy.host.paths import CHECKOUT, cache_folder
from tests.inputs import inputs_of, zeros
from tests.kit import SMALL, Kit, free_ports
from tests.programs import run_program
from tests.site_models import write_beginning
from tests.views import (
    ORDINARY,
    ROOT,
    account,
    docker_group,
    opened,
    python_folders,
    shared_cache,
    view,
)


@dataclass(frozen=True)
class Tight:
    """The kit where a server gets 16 MB of shared memory.

    Attributes:
        kit: The kit.
        flags: What ``up`` is told.
        shared_memory: The folder, as this test sees it; None if only a container has it.
    """

    kit: Kit
    flags: tuple[str, ...]
    shared_memory: Path | None = None


@pytest.fixture
def tight(kit):
    if kit.engine == "docker":
        yield Tight(kit, ("--shm-size", "16m"))
        return
    if kit.engine == "apptainer":
        pytest.skip("an instance has a /dev/shm of its own, as large as half of the memory")
    if os.geteuid() != 0:
        pytest.skip("only root can make the host's /dev/shm small")
    with view(f"mount -t tmpfs -o size=16m none {SHARED_MEMORY}") as small:
        yield Tight(replace(kit, within=small.within), (), small.path(SHARED_MEMORY))


def test_16_mb_of_shared_memory_serve_what_fits_and_nothing_else_harms(tight):
    answer = tight.kit.up("tight", *SMALL, *tight.flags)
    with (
        http.InferenceServerClient(f"127.0.0.1:{answer['ports']['http']}") as client,
        pytest.raises(InferenceServerException, match="shared memory"),
    ):
        client.infer("nugraph3", inputs_of(http, zeros(1_000_000)))  # 24 MB
    assert tight.kit.json("smoke", "--name", "tight")["ok"]
    status = tight.kit.json("status", "--name", "tight")
    assert (status["ok"], status["state"]["restarts"], status["state"]["heals"]) == (True, 0, 0)
    tight.kit.down("tight")
    assert not tight.kit.leftovers("tight", answer["scratch"])
    assert tight.shared_memory is None or not list(tight.shared_memory.iterdir())


def test_more_instances_than_16_mb_of_shared_memory_hold_are_refused(tight):
    flags = ("--models", "nugraph3", "--instances", "9", *tight.flags)
    answer = tight.kit.refused("crowded", *flags)
    assert "18 MB" in answer["error"], answer
    assert "fewer --instances" in answer["remedy"], answer
    assert not (tight.kit.folder("crowded") / "server.log").exists(), "nothing was started"


@ROOT
def test_an_instance_needs_nothing_of_the_host_s_shared_memory(kit):
    if kit.engine != "apptainer":
        pytest.skip("only an instance could be taken to use it, and does not")
    with view(f"mount -t tmpfs -o size=4k,nr_inodes=1 none {SHARED_MEMORY}") as none_left:
        there = replace(kit, within=none_left.within)
        there.names.append("apart")
        done = there.run("up", "--name", "apart", *SMALL)
        assert done.returncode == 0, done.stderr
        assert "warning: /dev/shm of this host has 0 MB free" in done.stderr
        assert there.json("smoke", "--name", "apart")["ok"]
        there.down("apart")
    assert not kit.leftovers("apart")


def test_a_full_tmp_is_no_hindrance(full_tmp):
    answer = full_tmp.up("full", *SMALL)
    assert full_tmp.json("smoke", "--name", "full")["ok"]
    full_tmp.down("full")
    assert not full_tmp.leftovers("full", answer["scratch"])


# Takes a port of a start (%s) when it has been found free and the server is not yet there.
THIEF = """
import socket, sys
from deploy.engines.base import Engine
launch, taken = Engine.launch, []
def robbed(engine, *, plan, say):
    if not taken:
        taken.append(socket.create_server(("127.0.0.1", plan.ports.%s)))
    return launch(engine, plan=plan, say=say)
Engine.launch = robbed
import deploy.commands.up as up
sys.exit(up.main())
"""


def robbed(kit: Kit, name: str, port: str, *flags: str) -> dict[str, Any]:
    kit.names.append(name)
    words = [sys.executable, "-c", THIEF % port, *kit.start[2:], "--json"]
    words += ["--name", name, *SMALL, *flags]
    done = run_program(words, cwd=CHECKOUT, env=kit.variables, timeout=180)
    assert "Traceback" not in done.stderr, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return {**answer, "status": done.returncode, "stderr": done.stderr}


def test_a_port_stolen_between_check_and_start_is_named(kit):
    ports = free_ports()
    answer = robbed(kit, "robbed", "grpc", "--ports", f"{ports.http},{ports.grpc},{ports.metrics}")
    assert answer["status"] == 1, answer
    assert f"127.0.0.1:{ports.grpc} was taken by another program" in answer["error"], answer
    assert "--ports" in answer["remedy"]
    assert not (kit.folder("robbed") / "state.json").exists()
    assert not kit.leftovers("robbed")


def test_a_stolen_port_that_nobody_asked_for_is_replaced_by_another(kit):
    answer = robbed(kit, "evaded", "metrics")
    assert answer["status"] == 0, answer
    assert kit.json("smoke", "--name", "evaded")["ok"]
    kit.down("evaded")
    assert not kit.leftovers("evaded", answer["scratch"])


def test_a_broken_model_among_good_ones_is_named_and_the_start_leaves_nothing(kit, tmp_path):
    write_beginning(tmp_path, "broken", "raise ValueError('weights of another detector')")
    kit.names.append("mixed")
    flags = ("--models-dir", str(tmp_path), "--models", "nugraph3,broken")
    answer = kit.refused("mixed", *flags)
    assert answer["error"].startswith("model broken "), answer
    assert "weights of another detector" in answer["error"], answer


@dataclass(frozen=True)
class Other:
    """Another user of the host.

    Attributes:
        kit: The kit, as this user runs it.
        uid: The user's id.
    """

    kit: Kit
    uid: int

    def belongings(self) -> list[str]:
        """Return what this user has: processes, shared memory, scratch folders, containers."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess):
                # One that has ended stays until init asks for its status.
                ended = process.status() == psutil.STATUS_ZOMBIE
                if process.uids().real == self.uid and not ended:
                    found.append(f"process {process.pid}")
        for folder in (SHARED_MEMORY, Path("/tmp")):
            found += [str(path) for path in folder.iterdir() if path.lstat().st_uid == self.uid]
        if self.kit.engine == "docker":
            names = ["docker", "ps", "--all", "--format={{.Names}}"]
            done = run_program(names, check=True)
            found += [n for n in done.stdout.split() if n.startswith(f"numlkit-{self.uid}-")]
        return found


@pytest.fixture
def other(kit, demo):
    """An ordinary user, who finds made what was made for ``demo``."""
    if os.geteuid() != 0:
        pytest.skip("only root can be another user, too")
    group = docker_group() if kit.engine == "docker" else None
    if kit.engine == "docker" and group is None:
        pytest.skip("the Docker engine has no socket whose group a user could be in")
    fuse = Path("/dev/fuse")
    if kit.engine == "apptainer" and not (fuse.exists() and fuse.stat().st_mode & stat.S_IWOTH):
        pytest.skip("an ordinary user may not open /dev/fuse here, by which a .sif is mounted")
    with tempfile.TemporaryDirectory(prefix="numlkit-test-") as name:
        Path(name).chmod(0o755)
        # One for each engine: they are tested side by side.
        user = account(Path(name) / "home", f"{ORDINARY}-{kit.engine}")
        cache = cache_folder()
        made = ("checked", "environments", "triton")
        if plan_environment("serving").interpreter.private:
            made = ("triton",)  # an environment with the kit's own Python names the cache it is in
        if kit.engine == "local":
            shared_cache(user.home, cache, made, user)
        needed = [CHECKOUT, *python_folders(), *(cache / each for each in made)]
        with view(*opened(path for path in needed if path.exists())) as seen:
            within = (*seen.within, *user.words(*([group] if group is not None else [])))
            theirs = Other(Kit(user.home / "state", kit.engine, within=within), user.uid)
            yield theirs
            theirs.kit.close()


def test_two_users_of_one_host_do_not_meet(kit, demo, single, other):
    before = other.belongings()
    missing = other.kit.json("down", "--name", "demo")
    assert missing["error"] == "no deployment named 'demo'", missing
    theirs = other.kit.up("single", *SMALL)
    assert set(theirs["ports"].values()).isdisjoint(single["ports"].values())
    for each in (other.kit, kit):
        each.json("doctor", "--fix")
    for each in (other.kit, kit):
        assert each.json("smoke", "--name", "single")["ok"]
    kit.down("single")
    assert not kit.leftovers("single", single["scratch"])
    assert other.kit.json("smoke", "--name", "single")["ok"]
    status = other.kit.json("status", "--name", "single")
    assert (status["ok"], status["state"]["restarts"]) == (True, 0), status
    assert other.kit.down("single")["stopped"] == ["single"]
    assert other.belongings() == before
    assert kit.json("status", "--name", "demo")["ok"]
