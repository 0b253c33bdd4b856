"""The real environment: made, packed, moved, activated, served by a real Triton.

The one for serving, on every interpreter; of the one with NuGraph's own packages, what they are.
Wheels and prefixes are kept in the user's own cache. No conda channel is reachable from
where these tests run everywhere, so a channel on disk stands for conda-forge: py-rattler
reads both the same way.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from deploy.building.wire import wire, wired_settings
from deploy.client.errors import ServerAwayError
from deploy.deployment import DEFAULT_MODELS
from deploy.environment.interpreter import Interpreter, find_interpreter
from deploy.hardware.plan import ON_CPU
from deploy.packing.archive import archive_name, pack_archive
from deploy.packing.conda_package import (
    PLACEHOLDER,
    SUBDIR,
    PackageName,
    write_package,
    write_repodata,
)
from deploy.packing.cpython import lay_out
from deploy.packing.layers import IMAGE_PREFIX, Layers, pack_layers
from deploy.packing.plan import EnvironmentBuild, plan_build
from deploy.packing.prefix import Prefix, make_prefix
from deploy.packing.wheels import wheels_folder
from deploy.paths import MODEL_REPOSITORY, cache_folder
from deploy.repository.stage import VERSION
from deploy.server.command import server_arguments, server_environment
from deploy.server.distribution import ensure_distribution
from deploy.server.golden import read_golden
from deploy.server.ports import choose_ports
from deploy.server.probe import Probe, smoke
from deploy.server.release import find_release

EPOCH = 1_700_000_000
NOBODY = 65534
START_S = 180

NUGRAPH = (
    "import torch, torch_geometric, pytorch_lightning, pynuml, nugraph, mpi4py.MPI, h5py, "
    "pandas, sklearn, nugraph.models, nugraph.data, pynuml.process, pynuml.io"
)


def say(_text: str) -> None:
    pass


def interpreters() -> list[Path]:
    """The kit's own choice, and Debian's, whose site-packages are elsewhere."""
    found = [find_interpreter("3.11").executable, Path("/usr/bin/python3.11")]
    return list(dict.fromkeys(path.resolve() for path in found if path.exists()))


@pytest.fixture(scope="session", params=interpreters(), ids=str)
def build(request: pytest.FixtureRequest) -> EnvironmentBuild:
    return plan_build(flavour="serving", wheels=None, python=request.param)


@pytest.fixture(scope="session")
def prefix(build: EnvironmentBuild) -> Prefix:
    return make_prefix(build, say)


@pytest.fixture(scope="session")
def full_build() -> EnvironmentBuild:
    return plan_build(flavour="cpu", wheels=None, python=interpreters()[0])


@pytest.fixture(scope="session")
def full_prefix(full_build: EnvironmentBuild) -> Prefix:
    return make_prefix(full_build, say)


@pytest.fixture(scope="session")
def archive(
    build: EnvironmentBuild, prefix: Prefix, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return pack_archive(prefix, build, tmp_path_factory.mktemp("dist"), say, EPOCH)


@pytest.fixture(scope="session")
def layers(
    build: EnvironmentBuild, prefix: Prefix, tmp_path_factory: pytest.TempPathFactory
) -> Layers:
    return pack_layers(prefix, build, tmp_path_factory.mktemp("layers"), say, EPOCH)


def run(folder: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(folder / "bin" / "python"), "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", **more},
    )


def golden_models() -> list[Path]:
    return sorted(path.parent for path in MODEL_REPOSITORY.glob(f"*/{VERSION}/golden.npz"))


def sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="tar")
    return folder


def size(prefix: Prefix) -> int:
    return sum(p.lstat().st_size for p in prefix.folder.rglob("*") if not p.is_dir())


def assert_holds_what_is_locked(build: EnvironmentBuild, prefix: Prefix) -> None:
    records = [
        json.loads(path.read_text()) for path in (prefix.folder / "conda-meta").glob("*.json")
    ]
    versions = {record["name"]: record["version"] for record in records}
    assert versions["python"] == prefix.python_version == build.interpreter.version
    for name, version in build.lock.versions.items():
        assert versions[f"pypi-{name.replace('_', '-').replace('.', '-')}"] == version
    assert all(str(cache_folder()) not in json.dumps(record["url"]) for record in records)


def test_it_is_a_conda_prefix_with_the_locked_versions(
    build: EnvironmentBuild, prefix: Prefix
) -> None:
    assert_holds_what_is_locked(build, prefix)
    assert build.lock.versions.keys() == {"numpy", "safetensors"}


def test_the_full_one_has_the_locked_versions_too(
    full_build: EnvironmentBuild, full_prefix: Prefix
) -> None:
    assert_holds_what_is_locked(full_build, full_prefix)


def test_it_has_what_the_stub_and_the_models_look_for(
    build: EnvironmentBuild, prefix: Prefix
) -> None:
    facts = json.loads((prefix.folder / "numlkit-environment.json").read_text())
    assert facts == {"digest": build.digest, "python": prefix.python_version}
    assert (prefix.folder / "lib" / "libpython3.11.so.1.0").is_file()


def test_files_name_the_prefix_they_lie_in(prefix: Prefix) -> None:
    libdir = run(prefix.folder, "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
    assert PLACEHOLDER not in libdir.stdout
    assert libdir.stdout.startswith((f"{prefix.folder}/lib", "/usr/lib"))


def test_nugraphs_own_stack_imports_where_the_full_one_is_unpacked(
    full_build: EnvironmentBuild, full_prefix: Prefix, tmp_path: Path
) -> None:
    packed = pack_archive(full_prefix, full_build, tmp_path / "dist", say, EPOCH)
    done = run(unpack(packed, tmp_path / "elsewhere"), NUGRAPH)
    assert done.returncode == 0, done.stderr


def test_packages_of_the_users_home_are_not_seen(prefix: Prefix, tmp_path: Path) -> None:
    other = tmp_path / ".local" / "lib" / "python3.11" / "site-packages" / "numpy"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the wrong numpy')")
    done = run(prefix.folder, "import numpy; print(numpy.__version__)", HOME=str(tmp_path))
    assert done.stdout.startswith("1.26."), done.stderr


def test_it_loads_nothing_of_the_host_but_glibc(prefix: Prefix) -> None:
    code = (
        "import bz2, ctypes, hashlib, lzma, pyexpat, readline, sqlite3, ssl, uuid, zlib, sys\n"
        "maps = {l.split()[-1] for l in open('/proc/self/maps') if '.so' in l}\n"
        "print(*sorted(m for m in maps if not m.startswith(sys.prefix)), sep='\\n')"
    )
    done = run(prefix.folder, code)
    assert done.returncode == 0, done.stderr
    names = {Path(line).name.split(".so")[0].split("-")[0] for line in done.stdout.splitlines()}
    assert names <= {"ld", "libc", "libm", "libdl", "libpthread", "librt", "libutil"}


def test_their_sizes(prefix: Prefix, full_prefix: Prefix) -> None:
    assert size(prefix) < 0.12e9
    assert size(full_prefix) < 0.86e9


def test_the_archive_has_its_digest_beside_it(archive: Path) -> None:
    done = subprocess.run(
        ["sha256sum", "-c", f"{archive.name}.sha256"],
        cwd=archive.parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in archive.parent.iterdir()) == [
        archive.name,
        f"{archive.name}.sha256",
    ]


def test_everybody_can_read_what_the_archive_holds(archive: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert archive.stat().st_mode & 0o777 == 0o644
    assert all(member.mtime == EPOCH and member.uid == 0 for member in members)
    for member in members:
        wanted = 0o755 if member.isdir() else 0o444
        assert member.issym() or member.mode & wanted == wanted, member.name


def test_an_ordinary_user_runs_it_anywhere_read_only(archive: Path, tmp_path: Path) -> None:
    folder = unpack(archive, tmp_path / "other place")
    if os.geteuid() == 0:
        for parent in folder.parents[:3]:
            parent.chmod(0o755)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "bash"]
    else:
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
        command = ["bash"]
    script = 'source "$0/bin/activate" && exec python -m numl_serving.check "$@"'
    models = [str(path) for path in golden_models()]
    done = subprocess.run(
        [*command, "-c", script, str(folder), *models],
        capture_output=True, text=True, check=False, env={"PATH": os.defpath}, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"ok": true') == len(models) == 3
    if os.geteuid() == 0:
        subprocess.run(
            [str(folder / "bin" / "python"), str(folder / "bin/conda-unpack")], check=True
        )
        libdir = run(folder, "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
        assert libdir.stdout.startswith((f"{folder}/lib", "/usr/lib"))


@contextmanager
def triton(repository: Path, folder: Path) -> Iterator[Probe]:
    distribution = ensure_distribution(cache_folder(), find_release("24.10"), "3.11", say)
    ports = choose_ports("127.0.0.1", None)
    command = server_arguments(
        distribution=distribution, repository=repository, listen="127.0.0.1", ports=ports,
        shm_prefix=f"numl_packed_{os.getpid()}", identity="packed",
    )  # fmt: skip
    variables = server_environment(
        distribution=distribution, threads=1, inherited=os.environ, devices=ON_CPU.variables
    )
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=variables)
    try:
        yield Probe(f"http://127.0.0.1:{ports.http}", identity="packed")
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)


def test_a_real_triton_serves_all_models_from_the_archive(
    archive: Path, build: EnvironmentBuild, prefix: Prefix, tmp_path: Path
) -> None:
    distribution = ensure_distribution(cache_folder(), find_release("24.10"), "3.11", say)
    settings = wired_settings(archive, environment_digest=build.digest, instances=1, gpu=False)
    repository = tmp_path / "models"
    wire(
        repository, archive=archive, repository=MODEL_REPOSITORY, models=DEFAULT_MODELS,
        settings=settings, distribution=distribution, libpython=prefix.libpython,
    )  # fmt: skip
    with triton(repository, tmp_path) as probe:
        started = time.monotonic()
        while not all(_ready(probe, model) for model in DEFAULT_MODELS):
            assert time.monotonic() - started < START_S, (tmp_path / "log").read_text()[-3000:]
            time.sleep(0.5)
        for model in DEFAULT_MODELS:
            golden = read_golden(repository / model / VERSION / "golden.npz")
            assert smoke(probe, model, golden).error is None


def _ready(probe: Probe, model: str) -> bool:
    try:
        return probe.model_ready(model)
    except ServerAwayError:
        return False


def test_layers_hold_the_environment_at_its_place_in_the_image(layers: Layers) -> None:
    root = IMAGE_PREFIX.lstrip("/")
    with tarfile.open(layers.packages) as tar, tarfile.open(layers.serving) as other:
        packages, serving = tar.getnames(), other.getnames()
        assert sorted(set(packages)) == sorted(packages)
        files = {member.name for member in other.getmembers() if not member.isdir()}
        data = tar.extractfile(next(m for m in tar.getmembers() if "_sysconfigdata" in m.name))
        assert data is not None
        content = data.read()
    assert f"{root}/bin/activate" in packages
    assert f"{root}/numlkit-environment.json" in files
    assert not files & set(packages)
    assert all(name in ("opt", "opt/numl") or name.startswith(root) for name in packages + serving)
    assert PLACEHOLDER.encode() not in content
    assert str(cache_folder()).encode() not in content


def test_a_change_of_our_python_leaves_the_layer_of_the_packages(
    layers: Layers, build: EnvironmentBuild, tmp_path: Path
) -> None:
    source = tmp_path / "numl"
    shutil.copytree(build.source, source, ignore=shutil.ignore_patterns("__pycache__"))
    with (source / "numl_serving" / "errors.py").open("a") as stream:
        stream.write("\n# changed\n")
    digest = hashlib.sha256(build.digest.encode()).hexdigest()
    changed = replace(build, source=source, digest=digest)
    prefix = make_prefix(changed, say)
    try:
        again = pack_layers(prefix, changed, tmp_path / "layers", say, EPOCH)
    finally:
        shutil.rmtree(prefix.folder)
    assert sha256(again.packages) == sha256(layers.packages)
    assert sha256(again.serving) != sha256(layers.serving)


def test_two_builds_that_share_nothing_make_the_same_bytes(tmp_path: Path) -> None:
    build = plan_build(flavour="serving", wheels=None, python=interpreters()[0])
    alone = replace(build, cache=tmp_path / "cache", wheels=wheels_folder(build.cache, build.lock))
    digests = []
    for one in (build, alone):
        layers = pack_layers(make_prefix(one, say), one, tmp_path / "layers", say, EPOCH)
        digests.append((sha256(layers.packages), sha256(layers.serving)))
    assert digests[0] == digests[1]


def test_the_interpreter_of_a_channel_takes_the_place_of_the_hosts(tmp_path: Path) -> None:
    """A channel on disk stands for conda-forge: its Python is the host's, repacked."""
    interpreter = plan_build(flavour="serving", wheels=None, python=interpreters()[0]).interpreter
    assert isinstance(interpreter, Interpreter)
    remote = tmp_path / "remote"
    tree = tmp_path / "python"
    tree.mkdir()
    lay_out(interpreter, tree)
    packages = [
        PackageName("python", interpreter.version, "0_cpython"),
        PackageName("numpy", "2025a", "0"),  # a name that the lock has too
    ]
    write_package(packages[0], ["numpy", "__glibc >=2.17"], tree, remote)
    share = tmp_path / "numpy"
    (share / "ssl").mkdir(parents=True)
    (share / "ssl" / "openssl.cnf").write_text(f"dir = {PLACEHOLDER}/ssl\n")
    write_package(packages[1], [], share, remote)
    write_repodata(remote, packages)

    channelled = plan_build(flavour="serving", wheels=None, python=None, channel=remote.as_uri())
    made = make_prefix(channelled, say)
    try:
        names = {path.name for path in (made.folder / "conda-meta").glob("*.json")}
        assert {f"{package.stem}.json" for package in packages} <= names
        assert (made.folder / "ssl" / "openssl.cnf").read_text() == f"dir = {made.folder}/ssl\n"
        packed = pack_archive(made, channelled, tmp_path / "dist", say, EPOCH)
        assert packed.name == archive_name(channelled)
    finally:
        shutil.rmtree(made.folder)
    assert (remote / SUBDIR / packages[0].file_name).exists()
