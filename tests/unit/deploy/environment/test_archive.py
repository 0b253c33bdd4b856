"""Archives of a small conda prefix, packed by conda-pack."""

import hashlib
import io
import os
import resource
import shutil
import tarfile
from pathlib import Path
from unittest.mock import Mock

import pytest

from deploy.environment import archive
from deploy.environment.archive import archive_name, pack_archive, pack_layers
from deploy.environment.environment import Environment
from deploy.environment.interpreter import Interpreter
from deploy.environment.lock import Lock
from deploy.environment.tars import write_prefix
from deploy.host.errors import BuildError
from tests.environments import ignore

EPOCH = 1_700_000_000

# Stands for the interpreter: what a real one answers is tested with a real one, in
# tests/containers.
ANSWERING = r"""#!/bin/sh
prefix=$(dirname "$(dirname "$0")")
printf '{"python": "3.11.7", "prefix": "%s"}\n' "$prefix"
echo '{"model": "m", "ok": true, "error": null}'
"""


@pytest.fixture
def prefix(tmp_path):
    folder = tmp_path / "made" / "env"
    for name, content in {
        "bin/python3.11": ANSWERING,
        "conda-meta/history": "",
        "lib/big.so": "\0" * 3_000_000,
        "lib/python3.11/site-packages/numl_serving/check.py": "x = 1\n",
        "lib/python3.11/site-packages/numl_serving-0.1.0.dist-info/METADATA": "Name: x\n",
        "numlkit-environment.json": '{"digest": "d"}\n',
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o600)
    (folder / "bin/python3.11").chmod(0o700)
    (folder / "bin/python").symlink_to("python3.11")
    none = Path("/nonexistent")
    return Environment(
        name="numl", flavour="cpu", lock=Lock("3.11", none, none, "l", {}), relocatable=True,
        interpreter=Interpreter(none, "3.11.7", none), digest="0123456789abcdef", folder=folder,
        packages=none,
    )  # fmt: skip


def written(prefix: Environment, root: str = "") -> bytes:
    stream = io.BytesIO()
    write_prefix(stream, prefix.folder, root=root, epoch=EPOCH)
    return stream.getvalue()


def members(content: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        found = tar.getmembers()
    assert len({member.name for member in found}) == len(found)
    return {member.name: member for member in found}


def test_everybody_can_read_everything_and_nobody_else_owns_it(prefix):
    found = members(written(prefix))
    modes = {"bin/python3.11": 0o755, "bin/conda-unpack": 0o755, "bin/activate": 0o644}
    modes |= {"lib/big.so": 0o644, "lib/python3.11/site-packages": 0o755}
    assert {name: found[name].mode for name in modes} == modes
    assert found["bin/python"].linkname == "python3.11"
    assert found["lib/python3.11/site-packages"].isdir()
    assert all(m.uid == m.gid == 0 and m.mtime == EPOCH for m in found.values())


def test_in_an_image_a_folder_comes_before_what_is_in_it_and_nothing_is_to_be_unpacked(prefix):
    names = list(members(written(prefix, root="opt/numl/env")))
    for place, name in enumerate(names):
        parent = str(Path(name).parent)
        assert parent == "." or names.index(parent) < place
    assert "opt/numl/env/bin/activate" in names
    assert "opt/numl/env/bin/conda-unpack" not in names


def test_the_bytes_are_the_same_whatever_the_disk_says_and_do_not_name_this_host(prefix):
    before = written(prefix)
    os.utime(prefix.folder / "lib" / "big.so", (1, 1))
    assert written(prefix) == before
    assert str(prefix.folder).encode() not in before


def test_a_folder_that_is_no_conda_prefix_is_refused(prefix):
    shutil.rmtree(prefix.folder / "conda-meta")
    with pytest.raises(BuildError, match=r"conda-pack cannot pack .*not a conda env") as caught:
        written(prefix)
    assert "\n" not in caught.value.cause
    assert caught.value.remedy == f"rm -r {prefix.folder}"


def test_the_number_of_cores_makes_no_difference(prefix, tmp_path, monkeypatch):
    packed = set()
    for cores in (1, 2, 8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _process, n=cores: range(n))
        packed.add(pack_archive(prefix, tmp_path / str(cores), ignore, EPOCH).read_bytes())
    assert len(packed) == 1


def test_an_archive_that_answers_gets_its_name_and_digest_and_clears_what_a_killed_build_left(
    prefix, tmp_path
):
    out = tmp_path / "dist"
    (out / f".numlkit.{archive_name(prefix)}.abcd1234.partial" / "unpacked").mkdir(parents=True)
    path = pack_archive(prefix, out, ignore, EPOCH)
    assert path == out / archive_name(prefix) == out / "numl-cpu-py3.11-0123456789ab.tar.gz"
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert (out / f"{path.name}.sha256").read_text() == f"{digest}  {path.name}\n"
    assert path.stat().st_mode & 0o777 == 0o644
    assert len(list(out.iterdir())) == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, BuildError("x")])
def test_an_interrupted_or_failed_check_leaves_nothing(prefix, tmp_path, monkeypatch, error):
    monkeypatch.setattr(archive, "try_out", Mock(side_effect=error))
    with pytest.raises((KeyboardInterrupt, BuildError)):
        pack_archive(prefix, tmp_path / "dist", ignore, EPOCH)
    assert list((tmp_path / "dist").iterdir()) == []


def test_a_full_disk_is_not_taken_for_success_and_leaves_nothing(prefix, tmp_path):
    (prefix.folder / "lib" / "random.so").write_bytes(os.urandom(2_000_000))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))  # stands in for it
    try:
        with pytest.raises(OSError, match="File too large"):
            pack_archive(prefix, tmp_path / "dist", ignore, EPOCH)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list((tmp_path / "dist").iterdir()) == []


def test_our_own_part_of_an_environment_is_a_layer_of_its_own(prefix, tmp_path):
    pack_layers(prefix, tmp_path, ignore)
    packages = members((tmp_path / "packages.tar").read_bytes())
    serving = {
        name.removeprefix("opt/numl/env/")
        for name, member in members((tmp_path / "serving.tar").read_bytes()).items()
        if member.isfile()
    }
    assert serving == {
        "lib/python3.11/site-packages/numl_serving/check.py",
        "numlkit-environment.json",
        "lib/python3.11/site-packages/numl_serving-0.1.0.dist-info/METADATA",
    }
    assert "opt/numl/env/bin/activate" in packages
    assert "opt/numl/env/bin/python3.11" in packages
    assert not {f"opt/numl/env/{name}" for name in serving} & packages.keys()
