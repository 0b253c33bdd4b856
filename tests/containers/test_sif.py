"""The .sif in a real Apptainer: built in each way, compared with Apptainer's own, run, stopped.

Where root runs the tests, everything that is run is run by root and by an ordinary user.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import docker
import pytest

from deploy.deployment import DEFAULT_MODELS, Ports
from deploy.errors import BuildError
from deploy.images.base import BaseImage, base_name
from deploy.images.build import BuiltImage
from deploy.images.labels import labels
from deploy.paths import CHECKOUT, MODEL_REPOSITORY, cache_folder
from deploy.server.golden import read_golden
from deploy.server.ports import choose_ports
from deploy.server.probe import Probe, smoke
from deploy.sif.build import build_sif_from_image, build_sif_without_docker
from deploy.sif.sif_file import ROOM
from deploy.sif.squashfs import COMPRESSIONS, Compression
from deploy.sif.tools import SifTools, find_tools
from tests.containers.conftest import HEALTH, Ingredients, say

EPOCH = 1_700_000_000
ORDINARY = "numlkit-test"
START_S = 180
WAYS = ("layers", "export") if os.geteuid() == 0 else ("export",)
USERS = ("root", "ordinary") if os.geteuid() == 0 else ("ordinary",)
# What Apptainer itself empties.
EMPTIED = {"etc/resolv.conf"}
# What the engine puts into every container that it exports, and what stands for it otherwise.
ENGINES_OWN = {"dev/console", "dev/pts", "dev/shm", "etc/hostname", "etc/hosts", "etc/mtab"}
ENGINES_OWN |= {"etc/resolv.conf"}


@dataclass(frozen=True)
class Host:
    """Someone at the keyboard of a machine with nothing but Apptainer and a .sif."""

    account: pwd.struct_passwd | None
    options: tuple[str, ...] = ()

    def words(self, *command: str | Path) -> list[str]:
        """The command line as this one types it; ``apptainer ACTION`` gets what it needs here."""
        words = [str(word) for word in command]
        if words[0] == "apptainer" and words[1] in ("run", "exec", "test"):
            words[2:2] = self.options
        if self.account is None:
            return words
        name, home = self.account.pw_name, self.account.pw_dir
        identity = ["--reuid", name, "--regid", str(self.account.pw_gid), "--init-groups"]
        return ["setpriv", *identity, "env", f"HOME={home}", f"USER={name}", *words]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(*command), cwd="/", capture_output=True, text=True, check=False
        )

    def output(self, *command: str | Path) -> str:
        done = self.run(*command)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="session")
def ordinary_user() -> Host:
    if os.geteuid() != 0:
        return Host(None)
    try:
        account = pwd.getpwnam(ORDINARY)
    except KeyError:
        subprocess.run(["useradd", "--system", "--create-home", ORDINARY], check=True)
        account = pwd.getpwnam(ORDINARY)
    # A machine may keep FUSE to itself; what Apptainer then has to do is slower.
    fuse = Path("/dev/fuse")
    is_open = fuse.exists() and fuse.stat().st_mode & stat.S_IROTH
    return Host(account, () if is_open else ("--unsquash",))


@pytest.fixture(params=USERS)
def host(request: pytest.FixtureRequest, ordinary_user: Host) -> Host:
    return Host(None) if request.param == "root" else ordinary_user


@pytest.fixture(scope="session")
def tools() -> SifTools:
    return find_tools(COMPRESSIONS["zstd"])


@dataclass(frozen=True)
class Builder:
    """Builds from the image with the settings of these tests."""

    engine: docker.DockerClient
    image: str
    tools: SifTools

    def __call__(
        self, out: Path, *, way: str | None = None, compression: Compression = COMPRESSIONS["zstd"]
    ) -> Path:
        build_sif_from_image(
            self.engine,
            self.image,
            out,
            tools=self.tools,
            compression=compression,
            epoch=EPOCH,
            say=say,
            way=way,  # type: ignore[arg-type]
        )
        return out


@pytest.fixture(scope="session")
def build(engine: docker.DockerClient, image: BuiltImage, tools: SifTools) -> Builder:
    return Builder(engine, image.tag, tools)


@pytest.fixture(scope="session")
def folder() -> Iterator[Path]:
    """A folder that every user may read; its content is large and goes when the tests end."""
    with tempfile.TemporaryDirectory(prefix="numlkit-test-sif-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture(scope="session")
def sif(build: Builder, folder: Path) -> Path:
    """The .sif, built in the way that is chosen here."""
    return build(folder / "numl.sif")


@pytest.fixture(scope="session")
def exported_sif(build: Builder, folder: Path) -> Path:
    return build(folder / "exported.sif", way="export")


@pytest.fixture(scope="session")
def sif_without_docker(
    context: Path, ingredients: Ingredients, tools: SifTools, folder: Path
) -> Path:
    return _build_without_docker(context, ingredients, tools, folder / "without-docker.sif")


def _build_without_docker(
    context: Path, ingredients: Ingredients, tools: SifTools, out: Path
) -> Path:
    def facts(base: BaseImage) -> dict[str, str]:
        return labels(base, ingredients.facts)

    build_sif_without_docker(
        context,
        out,
        base=base_name("slim", ""),
        digest=None,
        labels=facts,
        tools=tools,
        compression=COMPRESSIONS["zstd"],
        epoch=EPOCH,
        say=say,
    )
    return out


@dataclass(frozen=True)
class Entry:
    """A file, folder, link or device of a tree."""

    mode: str
    owner: tuple[int, int]
    content: str


def tree(root: Path) -> dict[str, Entry]:
    found = {}
    for parent, folders, files in os.walk(root):
        for name in (*folders, *files):
            path = Path(parent, name)
            facts = path.lstat()
            content = ""
            if path.is_symlink():
                content = str(path.readlink())
            elif stat.S_ISREG(facts.st_mode):
                with path.open("rb") as stream:
                    content = hashlib.file_digest(stream, "sha256").hexdigest()
            mode = stat.filemode(facts.st_mode)
            owner = (facts.st_uid, facts.st_gid)
            found[str(path.relative_to(root))] = Entry(mode, owner, content)
    return found


def tree_of(sif: Path) -> dict[str, Entry]:
    """The file system of a .sif that the kit has built."""
    with tempfile.TemporaryDirectory(dir=sif.parent) as scratch:
        target = Path(scratch) / "root"
        command = ["unsquashfs", "-quiet", "-no-progress", "-offset", str(ROOM), "-dest"]
        subprocess.run([*command, target, sif], check=True, stdout=subprocess.DEVNULL)
        return tree(target)


def differing(one: dict[str, Entry], other: dict[str, Entry]) -> set[str]:
    return {name for name in one.keys() | other.keys() if one.get(name) != other.get(name)}


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# What is in it


@pytest.fixture(scope="session")
def own_tree(sif: Path) -> dict[str, Entry]:
    return tree_of(sif)


@pytest.mark.skipif(os.geteuid() != 0, reason="owners can be compared by root only")
def test_its_files_are_those_that_apptainer_itself_puts_in(
    own_tree: dict[str, Entry], image: BuiltImage, folder: Path
) -> None:
    sandbox = folder / "apptainers-own"
    command = ["apptainer", "build", "--sandbox", sandbox, f"docker-daemon:{image.tag}"]
    subprocess.run(command, check=True, capture_output=True)
    try:
        assert differing(own_tree, tree(sandbox)) - EMPTIED == {
            # What this build says of itself, in other words.
            ".singularity.d/Singularity",
            ".singularity.d/labels.json",
            ".singularity.d/env/10-docker2singularity.sh",
            ".singularity.d/env/90-environment.sh",
            ".singularity.d/runscript",
            ".singularity.d/startscript",
            # What an image has no word for.
            ".singularity.d/runscript.help",
            ".singularity.d/test",
        }
    finally:
        shutil.rmtree(sandbox)


def test_both_ways_of_reading_an_image_give_the_same_files(
    own_tree: dict[str, Entry], exported_sif: Path
) -> None:
    assert differing(own_tree, tree_of(exported_sif)) <= ENGINES_OWN


def test_without_docker_the_kits_own_files_are_the_same(
    own_tree: dict[str, Entry], sif_without_docker: Path
) -> None:
    def own(files: dict[str, Entry]) -> dict[str, Entry]:
        # The report of the image's own check has no part in it.
        return {
            name: entry
            for name, entry in files.items()
            if name.startswith("opt/") and name != "opt/numl/checked.json"
        }

    assert differing(own(own_tree), own(tree_of(sif_without_docker))) == set()


@pytest.mark.parametrize("way", WAYS)
def test_the_same_image_gives_the_same_bytes(build: Builder, folder: Path, way: str) -> None:
    first, second = (build(folder / f"{way}-{number}.sif", way=way) for number in (1, 2))
    try:
        assert sha256(first) == sha256(second)
    finally:
        first.unlink()
        second.unlink()


def test_without_docker_the_same_layers_give_the_same_bytes(
    sif_without_docker: Path,
    context: Path,
    ingredients: Ingredients,
    tools: SifTools,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1")
    again = _build_without_docker(context, ingredients, tools, folder / "again.sif")
    assert sha256(again) == sha256(sif_without_docker)
    again.unlink()


def test_inspect_shows_labels_scripts_and_environment(host: Host, sif: Path) -> None:
    shown = json.loads(host.output("apptainer", "inspect", "--all", sif))["data"]["attributes"]
    assert shown["labels"]["org.opencontainers.image.title"] == "numlkit"
    assert shown["labels"]["org.numlkit.triton.release"] == "24.10"
    assert shown["labels"]["org.label-schema.build-date"] == "2023-11-14T22:13:20+00:00"
    assert 'exec /opt/numl/bin/serve "$@"' in shown["runscript"]
    assert 'exec /opt/numl/bin/serve "$@"' in shown["startscript"]
    assert "exec /opt/numl/bin/check" in shown["test"]
    assert "apptainer instance run" in shown["helpfile"]
    assert shown["deffile"].startswith("Bootstrap: docker-daemon\nFrom: numlkit-test/slim:")
    assert "NUML_LISTEN" in shown["environment"]["/.singularity.d/env/90-environment.sh"]


@pytest.mark.parametrize("flag", ["--labels", "--runscript", "--deffile", "--helpfile", "--test"])
def test_each_part_can_be_asked_for_alone(host: Host, sif: Path, flag: str) -> None:
    assert host.output("apptainer", "inspect", flag, sif).strip()


def test_the_header_is_as_apptainer_writes_it(sif: Path) -> None:
    header = subprocess.run(
        ["apptainer", "sif", "header", sif], capture_output=True, text=True, check=True
    ).stdout
    assert "run-singularity" in header
    assert "2023-11-14 22:13:20" in header
    assert stat.S_IMODE(sif.stat().st_mode) == 0o755
    parts = subprocess.run(
        ["apptainer", "sif", "list", sif], capture_output=True, text=True, check=True
    ).stdout
    assert [line.split("|")[-1] for line in parts.splitlines() if line[:1].isdigit()] == [
        "Def.FILE",
        "JSON.Generic",
        "JSON.Generic",
        "FS (Squashfs/*System/amd64)",
    ]
    assert f"{ROOM}-{sif.stat().st_size}" in parts


# Running it


@pytest.fixture
def ports() -> Ports:
    return choose_ports("127.0.0.1", None)


def _environment(ports: Ports) -> str:
    return ",".join(f"NUML_{use.upper()}_PORT={port}" for use, port in ports.model_dump().items())


def _leftovers() -> set[Path]:
    scratch = set(Path("/tmp").glob("python_env_*"))
    return scratch | set(Path("/dev/shm").glob("numlkit-*"))


def assert_all_models_answer(ports: Ports) -> None:
    for url in (f"http://127.0.0.1:{ports.http}", f"grpc://127.0.0.1:{ports.grpc}"):
        for model in DEFAULT_MODELS:
            golden = read_golden(MODEL_REPOSITORY / model / "1" / "golden.npz")
            result = smoke(Probe(url), model, golden)
            assert result.ok, result


def test_its_test_gives_every_models_known_answer(host: Host, sif: Path) -> None:
    lines = host.output("apptainer", "test", "--containall", sif).splitlines()
    answers = [json.loads(line) for line in lines if line.startswith('{"model"')]
    assert [answer["ok"] for answer in answers] == [True] * len(DEFAULT_MODELS)


@pytest.mark.parametrize("isolation", [(), ("--containall",)], ids=["shared", "containall"])
def test_run_serves_and_leaves_nothing(
    host: Host, sif: Path, ports: Ports, isolation: Sequence[str], tmp_path: Path
) -> None:
    before = _leftovers()
    environment = _environment(ports)
    command = host.words("apptainer", "run", *isolation, "--env", environment, sif, "--cpu")
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd="/", stdout=log, stderr=log)
        try:
            waited = host.run("apptainer", "exec", "--env", environment, sif,
                              HEALTH, "--wait", str(START_S))  # fmt: skip
            assert waited.returncode == 0, waited.stdout + (tmp_path / "log").read_text()
            assert_all_models_answer(ports)
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=60) == 0
        finally:
            process.kill()
            process.wait()
    assert _leftovers() - before == set()


@pytest.mark.parametrize("action", ["run", "start"])
def test_an_instance_serves_and_stops_cleanly(
    host: Host, sif: Path, ports: Ports, action: str
) -> None:
    before = _leftovers()
    name = f"numlkit-test-{os.getpid()}"
    environment = _environment(ports)
    host.output("apptainer", "instance", action, *host.options, "--containall",
                "--env", environment, sif, name, "--cpu")  # fmt: skip
    try:
        health = (HEALTH, "--wait", str(START_S))
        # A process that joins an instance does not get the environment that it was given.
        joined = ("apptainer", "exec", "--env", environment, f"instance://{name}", *health)
        waited = subprocess.run(
            Host(host.account).words(*joined), capture_output=True, text=True, check=False
        )
        assert waited.returncode == 0, waited.stdout + waited.stderr
        assert_all_models_answer(ports)
    finally:
        stopped = host.run("apptainer", "instance", "stop", "--timeout", "60", name)
    assert stopped.returncode == 0, stopped.stderr
    assert name not in host.output("apptainer", "instance", "list")
    assert _leftovers() - before == set()


def test_nothing_can_be_written_to_it(host: Host, sif: Path) -> None:
    done = host.run("apptainer", "exec", "--containall", sif, "touch", "/opt/numl/env/lib/x")
    assert done.returncode != 0
    assert "Read-only file system" in done.stderr or "Permission denied" in done.stderr


def test_it_listens_on_loopback_unless_told_otherwise(host: Host, sif: Path) -> None:
    show = ("sh", "-c", "echo $NUML_LISTEN")
    assert host.output("apptainer", "exec", sif, *show).strip() == "127.0.0.1"
    told = host.output("apptainer", "exec", "--env", "NUML_LISTEN=0.0.0.0", sif, *show)
    assert told.strip() == "0.0.0.0"


def test_packages_in_the_home_folder_are_not_seen(host: Host, sif: Path) -> None:
    words = ("/opt/numl/env/bin/python", "-c", "import site; print(site.ENABLE_USER_SITE)")
    assert host.output("apptainer", "exec", sif, *words).strip() == "False"


def test_the_file_itself_can_be_started(host: Host, sif: Path, tmp_path: Path) -> None:
    # As packages of Apptainer install it.
    program = tmp_path / "run-singularity"
    program.write_text('#!/bin/sh\nexec apptainer --quiet run "$@"\n')
    program.chmod(0o755)
    for parent in (tmp_path, *tmp_path.parents[:3]):
        parent.chmod(parent.stat().st_mode | 0o755)
    done = host.run("env", f"PATH={tmp_path}:{os.environ['PATH']}", sif, "--gpu")
    assert done.returncode == 2
    assert "no models for a GPU" in done.stderr


def test_a_gzip_one_works_too(host: Host, gzip_sif: Path) -> None:
    words = ("/opt/numl/env/bin/python", "-IBc", "import torch; print(torch.ones(2).sum().item())")
    assert host.output("apptainer", "exec", "--containall", gzip_sif, *words).strip() == "2.0"


@pytest.fixture(scope="session")
def gzip_sif(build: Builder, folder: Path) -> Path:
    assert find_tools(COMPRESSIONS["gzip"])
    out = build(folder / "gzip.sif", compression=COMPRESSIONS["gzip"])
    superblock = out.read_bytes()[ROOM : ROOM + 96]
    assert superblock[20] == 1  # the compressor: zlib
    return out


def test_one_made_without_docker_serves(
    host: Host, sif_without_docker: Path, ports: Ports, tmp_path: Path
) -> None:
    test_run_serves_and_leaves_nothing(host, sif_without_docker, ports, ("--containall",), tmp_path)


# When it goes wrong


@pytest.mark.parametrize("way", WAYS)
def test_an_interrupted_build_leaves_nothing(
    engine: docker.DockerClient, image: BuiltImage, tmp_path: Path, way: str
) -> None:
    out = tmp_path / "numl.sif"
    script = (
        "from pathlib import Path\n"
        "from deploy.images.engine import connect\n"
        "from deploy.sif.build import build_sif_from_image\n"
        "from deploy.sif.squashfs import COMPRESSIONS\n"
        "from deploy.sif.tools import find_tools\n"
        "c = COMPRESSIONS['gzip']\n"
        f"build_sif_from_image(connect(), {image.tag!r}, Path({str(out)!r}), tools=find_tools(c),"
        f" compression=c, epoch=0, say=print, way={way!r})\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=CHECKOUT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    deadline = time.monotonic() + 120
    while not any(f.stat().st_size > ROOM for f in tmp_path.glob(".numl.sif.*/numl.sif")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []
    assert engine.containers.list(all=True, filters={"ancestor": image.tag}) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
@pytest.mark.parametrize("way", WAYS)
def test_a_full_disk_is_named_and_nothing_is_left(build: Builder, tmp_path: Path, way: str) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", small], check=True)
    try:
        with pytest.raises(BuildError, match="no space left on device") as caught:
            build(small / "numl.sif", way=way)
        assert caught.value.remedy
        assert list(small.iterdir()) == []
    finally:
        subprocess.run(["umount", small], check=True)


def test_an_image_that_is_not_there_is_named(
    engine: docker.DockerClient, tools: SifTools, tmp_path: Path
) -> None:
    with pytest.raises(BuildError) as caught:
        Builder(engine, "numlkit-test/none:none", tools)(tmp_path / "numl.sif")
    assert caught.value.cause == "the Docker engine has no image numlkit-test/none:none"
    assert list(tmp_path.iterdir()) == []


def test_an_older_sif_stays_when_a_build_fails(
    engine: docker.DockerClient, tools: SifTools, tmp_path: Path
) -> None:
    out = tmp_path / "numl.sif"
    out.write_text("older")
    with pytest.raises(BuildError):
        Builder(engine, "numlkit-test/none:none", tools)(out)
    assert out.read_text() == "older"


def test_models_that_do_not_answer_are_not_built_into_one(
    context: Path, ingredients: Ingredients, tools: SifTools, folder: Path
) -> None:
    broken = folder / "broken"
    shutil.copytree(context, broken, copy_function=os.link)
    weights = broken / "models" / "cpu" / "nugraph3" / "1" / "weights.safetensors"
    weights.unlink()
    weights.write_bytes(b"broken")
    out = folder / "broken.sif"
    try:
        with pytest.raises(BuildError, match=r"^the models do not work in the container: .*3.*: "):
            _build_without_docker(broken, ingredients, tools, out)
        assert not out.exists()
        assert list(folder.glob(".broken.sif*")) == []
    finally:
        shutil.rmtree(broken)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user can be taken on by root only")
def test_an_ordinary_user_builds_the_same_bytes_without_docker(
    sif_without_docker: Path,
    context: Path,
    ingredients: Ingredients,
    tools: SifTools,
    ordinary_user: Host,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    account = ordinary_user.account
    assert account is not None
    with tempfile.TemporaryDirectory(prefix="numlkit-test-home-") as name:
        home = Path(name)
        # What this user can read: the checkout and the caches are perhaps root's.
        readable = home / "context"
        shutil.copytree(context, readable)
        definition = home / "numl.def"
        shutil.copy(CHECKOUT / "containers" / "numl.def", definition)
        monkeypatch.setattr("deploy.sif.recipe.DEFINITION", definition)
        # mmdebstrap wants subordinate user ids, which not every user has.
        shutil.copytree(cache_folder() / "bases", home / "cache" / "numlkit" / "bases")
        for path in (home, *home.rglob("*")):
            os.chown(path, account.pw_uid, account.pw_gid)
        out = home / "numl.sif"

        def as_that_user() -> None:
            os.environ |= {"HOME": name, "XDG_CACHE_HOME": f"{name}/cache", "USER": ORDINARY}
            _build_without_docker(readable, ingredients, tools, out)

        assert _as_user(account, as_that_user) == ""
        assert sha256(out) == sha256(sif_without_docker)


def _as_user(account: pwd.struct_passwd, act: Callable[[], None]) -> str:
    """Run ``act`` in a child process of that user; return what went wrong, or nothing."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        said = ""
        try:
            os.initgroups(account.pw_name, account.pw_gid)
            os.setgid(account.pw_gid)
            os.setuid(account.pw_uid)
            os.chdir("/")
            act()
        except BaseException as error:
            said = repr(error)
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        said = answer.read()
    os.waitpid(child, 0)
    return said
