"""Environments of a site, looked into before a server is."""

import gzip
import tarfile

import pytest

from deploy.environment.given import GivenEnvironment, check_usable, look_into
from deploy.host.errors import EnvironmentSetupError
from tests.unit.deploy.site_repository import ENVIRONMENT, write_archive

TOLD = {"activates": True, "python": "3.10", "numpy": "1.26.4"}

pytestmark = pytest.mark.usefixtures("home")


def usable(given: GivenEnvironment, *, in_container: bool = True) -> None:
    check_usable(given, numpy_below=2, in_container=in_container)


@pytest.mark.parametrize("kind", ["gz", ""])
@pytest.mark.parametrize("root", ["", "./"])
def test_an_archive_tells_python_numpy_and_its_size(tmp_path, kind, root):
    path = write_archive(tmp_path / "env", [root + name for name in ENVIRONMENT], kind=kind)
    given = look_into(path)
    assert given.libpython.read_text() == f"{root}lib/libpython3.10.so.1.0"
    assert given == GivenEnvironment(
        path=path, packed=True, libpython=given.libpython, unpacked_bytes=5 * 4096, **TOLD
    )
    usable(given)


def test_an_archive_is_read_once_and_again_when_it_has_changed(tmp_path):
    said: list[str] = []
    path = write_archive(tmp_path / "env.tar.gz")
    first = look_into(path, said.append)
    assert look_into(path, said.append) == first
    assert said == ["reading env.tar.gz"]
    write_archive(path, [*ENVIRONMENT, "more"])
    assert look_into(path, said.append).unpacked_bytes == 6 * 4096
    assert len(said) == 2


def test_a_folder_tells_the_same(tmp_path):
    with tarfile.open(write_archive(tmp_path / "env.tar.gz")) as tar:
        tar.extraction_filter = getattr(tarfile, "data_filter", None)
        tar.extractall(tmp_path / "env")
    given = look_into(tmp_path / "env")
    library = tmp_path / "env/lib/libpython3.10.so.1.0"
    assert given == GivenEnvironment(path=tmp_path / "env", packed=False, libpython=library, **TOLD)
    usable(given)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_condas_link_python3_1_is_not_taken_for_its_python(tmp_path, shared, packed):
    """Nor is a folder that an older Python has left, with its numpy, whatever comes first."""
    left = ["lib/python3.9/os.py", "lib/python3.9/site-packages/numpy-2.0.2.dist-info/RECORD"]
    names = [*left, *(name for name in ENVIRONMENT if shared or "libpython" not in name)]
    for name in names:
        path = tmp_path / "env" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (tmp_path / "env" / "lib" / "python3.1").symlink_to("python3.10")
    path = tmp_path / "env"
    if packed:
        path = tmp_path / "env.tar"
        with tarfile.open(path, "w") as tar:
            tar.add(tmp_path / "env", arcname="")
    given = look_into(path)
    assert (given.python, given.numpy) == ("3.10", "1.26.4")
    assert (given.libpython is not None) is shared


def test_the_kits_own_is_known_by_its_digest(tmp_path):
    (tmp_path / "numlkit-environment.json").write_text('{"digest": "abc", "python": "3.11.7"}')
    assert look_into(tmp_path).digest == "abc"


@pytest.mark.parametrize(
    "head",
    [b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh9", b"PK\x03\x04", b"", b"#!/bin/sh"],
    ids=["zstd", "xz", "bzip2", "zip", "empty", "script"],
)
def test_what_triton_does_not_unpack_is_refused(tmp_path, head):
    path = tmp_path / "env.tar.gz"
    path.write_bytes(head)
    said = f"environment {path} is neither tar.gz nor plain tar: Triton reads no other archives"
    with pytest.raises(EnvironmentSetupError, match=f"^execution {said}$") as caught:
        look_into(path)
    assert "conda-pack" in str(caught.value.remedy)


@pytest.mark.parametrize("at", ["in a file", "in the checksum", "cut off there", "cut off early"])
def test_an_archive_that_is_damaged_or_cut_off_is_refused_every_time(tmp_path, at):
    path = write_archive(tmp_path / "env.tar.gz")
    content = bytearray(gzip.compress(gzip.decompress(path.read_bytes()), compresslevel=0))
    if at == "cut off there":
        del content[-8:]
    elif at == "cut off early":
        del content[100:]
    else:
        content[content.index(b"bin/activate") + 512 if at == "in a file" else -8] ^= 1
    path.write_bytes(content)
    for _ in range(2):
        with pytest.raises(EnvironmentSetupError, match="is cut off or damaged"):
            look_into(path)


def test_one_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "none.tar.gz"
    said = f"^execution environment {path}: No such file or directory$"
    with pytest.raises(EnvironmentSetupError, match=said):
        look_into(path)


def without(*parts: str) -> list[str]:
    return [name for name in ENVIRONMENT if not any(part in name for part in parts)]


@pytest.mark.parametrize(("names", "cause"), [
    (without("activate"), "has no bin/activate at its root"),
    ([f"env/{name}" for name in ENVIRONMENT], "has no bin/activate at its root"),
    (without("libpython"), "has no libpython3.10.so, which its stub loads"),
    (without("numpy"), "has no numpy, which every stub imports"),
    ([*without("numpy"), "lib/python3.10/site-packages/numpy-2.1.3.dist-info/METADATA"],
     "has numpy 2.1.3, with which this Triton returns empty tensors"),
    ([*ENVIRONMENT, "pyvenv.cfg"],
     "is a virtual environment; a container cannot see the Python outside it"),
])  # fmt: skip
def test_what_would_not_serve_is_refused_with_the_reason(tmp_path, names, cause):
    path = write_archive(tmp_path / "env.tar.gz", names)
    given = look_into(path)
    with pytest.raises(EnvironmentSetupError) as caught:
        usable(given)
    assert caught.value.cause == f"execution environment {path} {cause}"
    assert caught.value.remedy


def test_a_virtual_environment_serves_without_a_container(tmp_path):
    path = write_archive(tmp_path / "env", [*without("libpython", "numpy"), "pyvenv.cfg"])
    usable(look_into(path), in_container=False)
