"""A Triton is read from itself. Real ones are in tests/integration and tests/containers."""

import errno
import json
import shutil
from unittest.mock import Mock

import pytest

from deploy.artefacts import triton
from deploy.artefacts.triton import find_triton
from deploy.artefacts.triton_source import SERVER
from deploy.host.errors import BuildError, EnvironmentSetupError
from deploy.host.paths import cache_folder
from deploy.triton.command import image_flags
from deploy.triton.distribution import TritonDistribution, ensure_distribution
from tests.environments import ignore
from tests.programs import write_program
from tests.releases import Blob, layer, write_oci

FLAGS = [flag.partition("=")[0] for flag in image_flags()]
HELP = "\n".join(f"  {flag} <string>" for flag in [*FLAGS, "--allow-client-shm"])
STARTS = "| server_version                   | 2.71.0   |"


@pytest.fixture
def server(tmp_path, monkeypatch):
    """Writes a folder like /opt/tritonserver with a server that says something, and returns it."""
    monkeypatch.setattr(triton, "needed_by", lambda _path: ["libc.so.6"])
    monkeypatch.setattr(triton, "python_of_stub", lambda _path: "3.12")

    def write(said=f"{HELP}\n{STARTS}", version=None):
        root = tmp_path / "tritonserver"
        for path in SERVER:
            write_program(root / path, f"echo '{said}' >&2\nexit 1")
        if version is not None:
            (root / "TRITON_VERSION").write_text(f"{version}\n")
        return root

    return write


def test_what_a_server_says_decides_what_the_kit_does_with_it(server):
    root = server()
    release = find_triton(str(root), ignore)
    assert (release.release, release.server, release.own_python) == ("2.71.0", "2.71.0", "3.12")
    assert "allow-client-shm" in release.flags
    assert release.numpy_below is None
    assert release.model_parameters == {"guard_arrays": "off"}
    assert find_triton(str(root), ignore) == release
    assert ensure_distribution(release, "3.12", ignore) == TritonDistribution(release.root, "3.12")
    with pytest.raises(EnvironmentSetupError, match=r"no stub of Triton 2\.71\.0 for Python 3\.11"):
        ensure_distribution(release, "3.11", ignore)


def lock_cannot_be_opened(_root, taken):
    lock = taken.with_name(f"{taken.name}.lock")
    lock.unlink()
    lock.mkdir()  # even by root


def another_backend_comes(root, _taken):
    (root / "backends" / "pytorch").mkdir()
    (root / "backends" / "pytorch" / "libtriton_pytorch.so").write_text("no ELF")


@pytest.mark.parametrize(
    "happens",
    [
        lambda _root, taken: (taken / triton.FACTS).write_text(""),
        lambda _root, taken: (taken / triton.FACTS).write_text('{"release":"2.71.0"}'),
        lock_cannot_be_opened,
        another_backend_comes,
    ],
    ids=["a power cut", "an older kit", "the cache is another's", "what is not chosen changes"],
)
def test_a_server_is_found_again_as_it_was_taken_whatever_happens_meanwhile(server, happens):
    root = server()
    release = find_triton(str(root), ignore)
    happens(root, release.root)
    assert find_triton(str(root), ignore) == release


def test_a_full_disk_is_named_and_what_was_unpacked_until_then_goes(tmp_path, monkeypatch):
    image = write_oci(tmp_path / "image", [layer({"opt/tritonserver/bin/tritonserver": b"x"})])
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(shutil, "copyfileobj", Mock(side_effect=full))
    with pytest.raises(OSError, match="No space left") as raised:
        find_triton(str(image), ignore)
    assert raised.value.filename == str(cache_folder())
    left = [path for path in cache_folder().rglob("*") if path.suffix != ".lock"]
    assert [path for path in left if path.is_file()] == []


def test_a_server_that_this_host_is_too_old_for_is_known_by_its_version_file(server):
    failed = "version GLIBC_2.39 not found"
    release = find_triton(str(server(failed, version="2.52.0")), ignore)
    assert (release.server, release.flags) == ("2.52.0", None)


@pytest.mark.parametrize(("said", "cause"), [
    (f"{HELP.replace('--exit-on-error', '--other')}\n{STARTS}", "does not know --exit-on-error"),
    ("version GLIBC_2.39 not found", "does not say which Triton it is"),
])  # fmt: skip
def test_a_server_that_the_kit_cannot_start_is_refused(server, said, cause):
    with pytest.raises(BuildError, match=cause):
        find_triton(str(server(said)), ignore)


def test_a_folder_without_the_python_backend_is_no_triton(server):
    root = server(STARTS)
    (root / SERVER[-1]).unlink()
    with pytest.raises(BuildError, match=r"has no backends/python/.*_utils\.py: it is no Triton"):
        find_triton(str(root), ignore)


def test_other_backends_are_kept_where_they_are_asked_for(server):
    root = server()
    for backend in ("onnxruntime", "pytorch"):
        (root / "backends" / backend).mkdir()
        (root / "backends" / backend / f"libtriton_{backend}.so").write_text("no ELF")
    found = find_triton(str(root), ignore, backends=("python", "onnxruntime"))
    assert found.backends == ("python", "onnxruntime")
    kept = {path.name for path in (found.root / "backends").iterdir()}
    assert kept == {"onnxruntime", "python"}
    assert find_triton(str(root), ignore).root != found.root
    with pytest.raises(BuildError, match="has no backend tensorrt"):
        find_triton(str(root), ignore, backends=("python", "tensorrt"))


@pytest.mark.parametrize(
    "changed",
    [
        "backends/onnxruntime/libtriton_onnxruntime.so",
        "lib/libtritonserver.so",
        "caches/local/libtritoncache_local.so",
        "LICENSE",
    ],
)
def test_a_folder_whose_backend_or_library_changed_is_taken_again(server, changed):
    root, chosen = server(), ("python", "onnxruntime")
    for path in ("backends/onnxruntime/libtriton_onnxruntime.so", "lib/other", changed):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("old")
    old = find_triton(str(root), ignore, backends=chosen)
    assert find_triton(str(root), ignore, backends=chosen) == old
    (root / changed).write_text("new, mended")
    new = find_triton(str(root), ignore, backends=chosen)
    assert (new.root, new.digest) != (old.root, old.digest)
    if not changed.startswith("lib/"):  # to which nothing here is linked
        assert (new.root / changed).read_text() == "new, mended"


def test_an_index_by_digest_is_not_asked_for_twice(server, serve):
    root = server()
    registry = serve(
        layer({f"opt/tritonserver/{path}": (root / path).read_bytes() for path in SERVER})
    )
    index = Blob(json.dumps({"manifests": [{"digest": registry.document.digest}]}).encode())
    registry.manifests = {index.digest: index}
    name = f"{registry.name}@{index.digest}"
    found = find_triton(name, ignore)
    assert found.origin == f"{registry.name}@{registry.document.digest}"
    registry.asked.clear()
    assert find_triton(name, ignore) == found
    assert registry.asked == []
    shutil.rmtree(found.root)
    assert find_triton(name, ignore) == found
