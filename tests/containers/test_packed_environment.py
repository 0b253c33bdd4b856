"""The real environment: made, packed, moved, activated, served by a real Triton.

The one for serving, on every interpreter; of the one with NuGraph's own packages, what they are:
that they import where it is moved, tests/conformance/test_site_models.py shows.
They are kept in the user's own cache.
"""

import json
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from deploy.artefacts.context import Packed, wire
from deploy.client.probe import Probe, smoke
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.deployment.gpus import ON_CPU
from deploy.environment import environment as module
from deploy.environment.archive import pack_archive, pack_layers
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.interpreter import find_interpreter
from deploy.host.errors import ServerAwayError
from deploy.host.files import sha256_of
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY, cache_folder
from deploy.triton.distribution import ensure_distribution
from deploy.triton.golden import read_golden
from deploy.triton.release import find_release
from deploy.triton.stage import VERSION
from tests.by_hand import triton
from tests.commands import run_command
from tests.environments import ignore
from tests.kit import NUMLKIT, open_to_all, until
from tests.programs import run_program

EPOCH = 1_700_000_000
NOBODY = 65534
START_S = 180


def interpreters() -> list[Path]:
    """The kit's own choice, and Debian's, whose site-packages are elsewhere."""
    found = find_interpreter(["3.11"])
    paths = [*([found.executable] if found else []), Path("/usr/bin/python3.11")]
    return list(dict.fromkeys(path.resolve() for path in paths if path.exists()))


def made(python: Path) -> Environment:
    return plan_environment("serving", relocatable=True, python=python).make(ignore)


@pytest.fixture(scope="session", params=interpreters(), ids=str)
def prefix(request):
    return made(request.param)


@pytest.fixture(scope="session")
def full_prefix():
    return plan_environment("cpu", relocatable=True).make(ignore)


@pytest.fixture(scope="session")
def archive(prefix, tmp_path_factory):
    return pack_archive(prefix, tmp_path_factory.mktemp("dist"), ignore, EPOCH)


@pytest.fixture(scope="session")
def layers(prefix, tmp_path_factory):
    folder = tmp_path_factory.mktemp("layers")
    pack_layers(prefix, folder, ignore)
    return folder


def run(folder: Path, code: str, **more: str) -> subprocess.CompletedProcess[str]:
    return run_program(
        [str(folder / "bin" / "python"), "-c", code],
        env={"PATH": os.defpath, "PYTHONDONTWRITEBYTECODE": "1", **more},
    )


def unpack(archive: Path, folder: Path) -> Path:
    with tarfile.open(archive) as tar:
        tar.extraction_filter = getattr(tarfile, "tar_filter", None)
        tar.extractall(folder)
    return folder


def size(prefix: Environment) -> int:
    return sum(p.lstat().st_size for p in prefix.folder.rglob("*") if not p.is_dir())


def assert_holds_what_is_locked(prefix: Environment) -> None:
    code = "import importlib.metadata as m, json; "
    code += "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = run(prefix.folder, code)
    found = {name.lower(): version for name, version in json.loads(done.stdout).items()}
    assert found.pop("numl-serving")
    assert found == prefix.lock.versions
    printed = run(prefix.folder, "import platform; print(platform.python_version())").stdout
    assert printed.strip() == prefix.interpreter.version


def test_it_has_the_locked_versions_and_nothing_else(prefix):
    assert_holds_what_is_locked(prefix)
    assert prefix.lock.versions.keys() == {"numpy", "safetensors"}


def test_the_full_one_has_the_locked_versions_too(full_prefix):
    assert_holds_what_is_locked(full_prefix)
    own = "import mpi4py.MPI, nugraph, pynuml, pytorch_lightning, torch_geometric"
    done = run(full_prefix.folder, own)
    assert done.returncode == 0, done.stderr


def test_it_has_what_the_stub_and_the_models_look_for(prefix):
    facts = json.loads((prefix.folder / "numlkit-environment.json").read_text())
    assert facts == {"digest": prefix.digest, "python": prefix.interpreter.version}
    assert (prefix.folder / "lib" / "libpython3.11.so.1.0").is_file()


def test_no_file_names_a_place_of_this_host(prefix):
    libdir = run(prefix.folder, "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))")
    assert libdir.stdout.startswith((f"{IMAGE_PREFIX}/lib", "/usr/lib"))
    for path in prefix.folder.rglob("*"):
        if path.is_file():
            assert str(cache_folder()).encode() not in path.read_bytes(), path


def test_packages_of_the_users_home_are_not_seen(prefix, tmp_path):
    other = tmp_path / ".local" / "lib" / "python3.11" / "site-packages" / "numpy"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("raise SystemExit('the wrong numpy')")
    done = run(prefix.folder, "import numpy; print(numpy.__version__)", HOME=str(tmp_path))
    assert done.stdout.startswith("1.26."), done.stderr


def test_it_loads_nothing_of_the_host_but_glibc(prefix):
    code = (
        "import bz2, ctypes, hashlib, lzma, pyexpat, readline, sqlite3, ssl, uuid, zlib, sys\n"
        "maps = {l.split()[-1] for l in open('/proc/self/maps') if '.so' in l}\n"
        "print(*sorted(m for m in maps if not m.startswith(sys.prefix)), sep='\\n')"
    )
    done = run(prefix.folder, code)
    assert done.returncode == 0, done.stderr
    names = {Path(line).name.split(".so")[0].split("-")[0] for line in done.stdout.splitlines()}
    assert names <= {"ld", "libc", "libm", "libdl", "libpthread", "librt", "libutil"}


def test_their_sizes(prefix, full_prefix):
    assert size(prefix) < 0.12e9
    assert size(full_prefix) < 0.86e9


def test_the_archive_has_its_digest_beside_it(archive):
    done = run_program(["sha256sum", "-c", f"{archive.name}.sha256"], cwd=archive.parent)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in archive.parent.iterdir()) == [
        archive.name,
        f"{archive.name}.sha256",
    ]


def test_everybody_can_read_what_the_archive_holds(archive):
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert archive.stat().st_mode & 0o777 == 0o644
    assert all(member.mtime == EPOCH and member.uid == 0 for member in members)
    for member in members:
        wanted = 0o755 if member.isdir() else 0o444
        assert member.issym() or member.mode & wanted == wanted, member.name


def test_an_ordinary_user_runs_it_anywhere_read_only(archive, tmp_path):
    folder = unpack(archive, tmp_path / "other place")
    if os.geteuid() == 0:
        open_to_all(folder)
        command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "bash"]
    else:
        subprocess.run(["chmod", "-R", "a-w", str(folder)], check=True)
        command = ["bash"]
    script = 'source "$0/bin/activate" && exec python -m numl_serving.check "$@"'
    models = [str(path.parent) for path in MODEL_REPOSITORY.glob(f"*/{VERSION}/golden.npz")]
    done = run_program(
        [*command, "-c", script, str(folder), *models], env={"PATH": os.defpath}, cwd="/"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count('"ok": true') == len(models) == 3
    if os.geteuid() == 0:
        subprocess.run(
            [str(folder / "bin" / "python"), str(folder / "bin/conda-unpack")], check=True
        )


def test_a_real_triton_serves_all_models_from_the_archive(archive, prefix, tmp_path):
    release, repository = find_release("24.10"), tmp_path / "models"
    packed = [Packed(archive, prefix, Path(IMAGE_PREFIX))]
    distribution, log = ensure_distribution(release, "3.11", ignore), tmp_path / "log"
    wire(repository, packed, release, distribution)
    with triton(distribution, repository, log, variables=ON_CPU.variables) as url:
        probe = Probe(url)
        until(lambda: all(_ready(probe, model) for model in DEFAULT_MODELS), f"{log}: models")
        for model in DEFAULT_MODELS:
            golden = read_golden(repository / model / VERSION / "golden.npz")
            assert smoke(probe, model, golden).error is None


def _ready(probe: Probe, model: str) -> bool:
    try:
        with probe.connected() as transport:
            return transport.model_ready(model)
    except ServerAwayError:
        return False


def test_layers_hold_the_environment_at_its_place_in_the_image(layers):
    root = IMAGE_PREFIX.lstrip("/")
    with (
        tarfile.open(layers / "packages.tar") as tar,
        tarfile.open(layers / "serving.tar") as other,
    ):
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
    assert str(cache_folder()).encode() not in content


def test_a_change_of_our_python_leaves_the_layer_of_the_packages(
    layers, prefix, tmp_path, monkeypatch
):
    source = tmp_path / "numl"
    shutil.copytree(ENVIRONMENT_SOURCE, source, ignore=shutil.ignore_patterns("__pycache__"))
    for changed_file in ("numl_serving/errors.py", "numl_formats/golden.py"):
        with (source / changed_file).open("a") as stream:
            stream.write("\n# changed\n")
    monkeypatch.setattr(module, "ENVIRONMENT_SOURCE", source)
    changed = made(prefix.interpreter.executable)
    assert changed.folder != prefix.folder
    pack_layers(changed, tmp_path, ignore)
    shutil.rmtree(changed.folder)
    assert sha256_of(tmp_path / "packages.tar") == sha256_of(layers / "packages.tar")
    assert sha256_of(tmp_path / "serving.tar") != sha256_of(layers / "serving.tar")


def test_two_builds_make_the_same_bytes(layers, prefix, tmp_path, monkeypatch):
    """They share the compiled library, which unit tests of the environment compile twice."""
    compiled = cache_folder() / "serving"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    shutil.copytree(compiled, cache_folder() / "serving")
    alone = made(prefix.interpreter.executable)
    assert alone.folder.is_relative_to(tmp_path)
    pack_layers(alone, tmp_path, ignore)
    assert sha256_of(tmp_path / "packages.tar") == sha256_of(layers / "packages.tar")
    assert sha256_of(tmp_path / "serving.tar") == sha256_of(layers / "serving.tar")


def test_the_environment_of_other_models_has_what_they_need_and_not_torch(tmp_path):
    words = ["build", "--target", "env", "--environment", "ocr", "--out", str(tmp_path), "--quiet"]
    assert run_command([NUMLKIT, *words], dict(os.environ), START_S).returncode == 0
    (archive,) = tmp_path.glob("ocr-cpu-py3.*.tar.gz")
    moved = unpack(archive, tmp_path / "moved")
    assert (moved / "bin" / "activate").is_file()
    missing = "import importlib.util as i; print(i.find_spec('torch'), i.find_spec('safetensors'))"
    code = f"import cv2, onnxruntime, numpy; import numl_serving.native; {missing}"
    done = run(moved, code)
    assert (done.stdout, done.stderr) == ("None None\n", "")
