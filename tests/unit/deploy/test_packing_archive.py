"""Archives of a small conda prefix, installed by py-rattler and packed by conda-pack."""

import hashlib
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import Lock
from deploy.errors import BuildError
from deploy.packing import archive
from deploy.packing.archive import archive_name, check_unpacked, pack_archive
from deploy.packing.channel import install, solve_locally
from deploy.packing.conda_package import PLACEHOLDER, PackageName, write_package, write_repodata
from deploy.packing.layers import pack_layers
from deploy.packing.plan import EnvironmentBuild
from deploy.packing.prefix import Prefix
from deploy.packing.tar_writer import write_tar
from deploy.paths import CHECKOUT

PYTHON = PackageName("python", "3.11.7", "0_cpython")
SERVING = PackageName("numl-serving", "0.1.0", "py311_0")
EPOCH = 1_700_000_000

# Stands for the interpreter: what a real one answers is tested with a real one, in
# tests/containers.
GOOD = '{"python": "3.11.7", "prefix": "%s"}\\n{"model": "m", "ok": true, "error": null}\\n'


@pytest.fixture(autouse=True, scope="module")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def answering(answer: str, status: int = 0) -> str:
    """A script in the place of Python that prints ``answer``, with its own prefix in it."""
    return f'#!/bin/sh\nprintf \'{answer}\' "$(dirname "$(dirname "$0")")"\nexit {status}\n'


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Prefix:
    folder = tmp_path_factory.mktemp("made")
    python, serving = folder / "python", folder / "serving"
    for path, content in {
        python / "bin/python3.11": answering(GOOD),
        python / "lib/python3.11/_sysconfigdata.py": f"prefix = '{PLACEHOLDER}'\n",
        python / "lib/big.so": "\0" * 3_000_000,
        serving / "lib/python3.11/site-packages/numl_serving/check.py": "x = 1\n",
        serving / "numlkit-environment.json": '{"digest": "d"}\n',
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)
    (python / "bin/python3.11").chmod(0o700)
    (python / "bin/python").symlink_to("python3.11")
    write_package(PYTHON, [], python, folder / "channel")
    write_package(SERVING, ["python 3.11.*"], serving, folder / "channel")
    write_repodata(folder / "channel", [PYTHON, SERVING])
    records = solve_locally(folder / "channel", [PYTHON.spec, SERVING.spec])
    install(records, folder / "env", prefix=str(folder / "env"), packages=folder / "unpacked")
    return Prefix(folder / "env", "0123456789abcdef", "3.11.7", (2, 35))


@pytest.fixture
def build(tmp_path: Path) -> EnvironmentBuild:
    none = Path("/nonexistent")
    return EnvironmentBuild(
        flavour="cpu", lock=Lock("3.11", none, none, "l", {}), recipe="r",
        interpreter=Interpreter(none, "3.11.7", none), digest="0123456789abcdef",
        source=none, wheels=None, cache=tmp_path / "cache",
    )  # fmt: skip


def written(prefix: Prefix, destination: str | None = None, root: str = "") -> bytes:
    stream = io.BytesIO()
    write_tar(
        stream, prefix.folder, root=root, destination=destination, epoch=EPOCH,
        wanted=lambda _path: True, scripts=True,
    )  # fmt: skip
    return stream.getvalue()


def members(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = tar.getmembers()
    assert len({member.name for member in found}) == len(found)
    return {member.name: member for member in found}


def test_everybody_can_read_everything_and_nobody_else_owns_it(prefix: Prefix) -> None:
    found = members(written(prefix))
    assert found["bin/python3.11"].mode == 0o755
    assert found["bin/python"].linkname == "python3.11"
    assert found["bin/conda-unpack"].mode == 0o755
    assert found["bin/activate"].mode == 0o644
    assert found["lib/big.so"].mode == 0o644
    assert found["lib/python3.11/site-packages"].isdir()
    assert found["lib/python3.11/site-packages"].mode == 0o755
    assert all(m.uid == m.gid == 0 and m.mtime == EPOCH for m in found.values())
    assert "CACHEDIR.TAG" not in found


def test_an_archive_that_is_given_up_half_way_is_not_spoken_of_again(
    prefix: Prefix, tmp_path: Path
) -> None:
    script = (
        "import sys\n"
        "from pathlib import Path\n"
        "from conda_pack.core import Packer\n"
        "from deploy.packing import gzip_writer\n"
        "from deploy.packing.tar_writer import write_tar\n"
        "def interrupt(self): raise KeyboardInterrupt\n"
        "gzip_writer._BLOCK = 64\n"
        "Packer.finish = interrupt\n"
        "try:\n"
        "    with open(sys.argv[1], 'wb') as file, gzip_writer.GzipWriter(file, 1) as out:\n"
        "        write_tar(out, Path(sys.argv[2]), root='', destination=None, epoch=0,\n"
        "                  wanted=lambda path: True, scripts=True)\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted')\n"
    )
    command = [sys.executable, "-c", script, tmp_path / "archive", prefix.folder]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("interrupted\n", "")


def test_a_folder_comes_before_what_is_in_it(prefix: Prefix) -> None:
    names = list(members(written(prefix, root="opt/numl/env")))
    for place, name in enumerate(names):
        parent = str(Path(name).parent)
        assert parent == "." or names.index(parent) < place


def test_the_bytes_are_the_same_whatever_the_disk_says(prefix: Prefix) -> None:
    before = written(prefix)
    (prefix.folder / "lib" / "python3.11" / "__pycache__").mkdir(exist_ok=True)
    (prefix.folder / "lib/python3.11/__pycache__/_sysconfigdata.cpython-311.pyc").touch()
    os.utime(prefix.folder / "lib" / "big.so", (1, 1))
    assert written(prefix) == before


def test_the_final_prefix_is_put_in_if_it_is_known(prefix: Prefix) -> None:
    def data(content: bytes) -> str:
        with tarfile.open(fileobj=io.BytesIO(content)) as tar:
            stream = tar.extractfile("lib/python3.11/_sysconfigdata.py")
            assert stream is not None
            return stream.read().decode()

    assert data(written(prefix, "/opt/numl/env")) == "prefix = '/opt/numl/env'\n"
    assert "bin/conda-unpack" not in members(written(prefix, "/opt/numl/env"))
    assert str(prefix.folder) not in data(written(prefix))


def test_no_member_names_this_host(prefix: Prefix) -> None:
    assert str(prefix.folder.parent / "unpacked").encode() not in written(prefix)


def test_a_prefix_that_was_changed_is_refused(prefix: Prefix, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    subprocess.run(["cp", "-a", str(prefix.folder), str(copy)], check=True)
    (copy / "lib" / "big.so").unlink()
    with pytest.raises(BuildError, match=r"conda-pack cannot pack .*deleted") as caught:
        written(Prefix(copy, "d", "3.11.7", (2, 35)))
    assert "\n" not in caught.value.cause
    assert caught.value.remedy == f"rm -r {copy}"


def test_an_archive_that_answers_gets_its_name_and_digest(
    prefix: Prefix, build: EnvironmentBuild, tmp_path: Path
) -> None:
    out = tmp_path / "dist"
    path = pack_archive(prefix, build, out, lambda _: None, EPOCH)
    assert path == out / archive_name(build) == out / "numl-cpu-py3.11-0123456789ab.tar.gz"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (out / f"{path.name}.sha256").read_text() == f"{digest}  {path.name}\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert len(list(out.iterdir())) == 2
    again = pack_archive(prefix, build, tmp_path / "again", lambda _: None, EPOCH)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError])
def test_an_interrupted_or_failed_check_leaves_nothing(
    prefix: Prefix,
    build: EnvironmentBuild,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
) -> None:
    def fail(*_: object) -> None:
        raise error("x")

    monkeypatch.setattr(archive, "try_out", fail)
    with pytest.raises(error):
        pack_archive(prefix, build, tmp_path / "dist", lambda _: None, EPOCH)
    assert list((tmp_path / "dist").iterdir()) == []


def test_what_a_killed_build_left_is_removed_by_the_next(
    prefix: Prefix, build: EnvironmentBuild, tmp_path: Path
) -> None:
    stale = tmp_path / "dist" / f".{archive_name(build)}.abc.partial"
    (stale / "unpacked").mkdir(parents=True)
    pack_archive(prefix, build, tmp_path / "dist", lambda _: None, EPOCH)
    assert not stale.exists()


def environment(folder: Path, answer: str, status: int = 0) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "activate").write_text(f'PATH="{folder}/bin:$PATH"\n')
    (folder / "bin" / "python").write_text(answering(answer, status))
    (folder / "bin" / "python").chmod(0o755)
    return folder


def test_a_wrong_answer_is_named(tmp_path: Path) -> None:
    wrong = '{"prefix": "%s"}\\n{"model": "nugraph3", "ok": false, "error": "wrong answer: x"}\\n'
    with pytest.raises(BuildError, match="packed environment: model nugraph3: wrong answer: x"):
        check_unpacked(environment(tmp_path / "e", wrong, 1), [])


def test_a_python_of_the_host_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="does not work: exit status 0"):
        check_unpacked(environment(tmp_path / "e", '{"prefix": "/usr"}\\n'), [])


def test_the_first_exception_is_the_reason(tmp_path: Path) -> None:
    folder = environment(tmp_path / "e", "")
    (folder / "bin" / "python").write_text(
        "#!/bin/sh\ncat >&2 <<'E'\nTraceback (most recent call last):\n"
        "ModuleNotFoundError: No module named 'x'\n\nDuring handling\n"
        "ImportError: you should not\n    try this\nE\nexit 1\n"
    )
    with pytest.raises(BuildError, match="does not work: ModuleNotFoundError: No module named 'x'"):
        check_unpacked(folder, [])


def test_an_environment_that_cannot_be_activated_is_named(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"does not work: .*bin/activate: No such file"):
        check_unpacked(tmp_path, [])


def test_our_own_part_of_an_environment_is_a_layer_of_its_own(
    prefix: Prefix, build: EnvironmentBuild, tmp_path: Path
) -> None:
    layers = pack_layers(prefix, build, tmp_path, lambda _: None, EPOCH)
    packages = members(layers.packages.read_bytes())
    serving = {
        name.removeprefix("opt/numl/env/")
        for name, member in members(layers.serving.read_bytes()).items()
        if member.isfile()
    }
    assert serving == {
        "lib/python3.11/site-packages/numl_serving/check.py",
        "numlkit-environment.json",
        f"conda-meta/{SERVING.stem}.json",
    }
    assert "opt/numl/env/bin/activate" in packages
    assert f"opt/numl/env/conda-meta/{PYTHON.stem}.json" in packages
    assert not {f"opt/numl/env/{name}" for name in serving} & packages.keys()
