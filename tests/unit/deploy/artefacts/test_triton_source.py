"""Which files of an image are its server's, and which layers are read for them."""

from __future__ import annotations

import hashlib
import tarfile
from pathlib import Path

import pytest

from deploy.artefacts import layers, tree
from deploy.artefacts.layers import find_image
from deploy.artefacts.triton_source import OWN_STUB, PROGRAM, ImageSource
from deploy.host.errors import BuildError
from tests.environments import ignore
from tests.releases import Blob, Files, layer, write_oci

PLACE, LIB = "opt/tritonserver", "usr/lib/x86_64-linux-gnu"
NOISE: Files = {"var/noise": hashlib.shake_256(b"noise").digest(100_000)}
OLD = layer({f"{PLACE}/{OWN_STUB}": b"old", f"{PLACE}/{PROGRAM}": b"old"})
NEW: Files = {f"{PLACE}/{OWN_STUB}": b"new", f"{PLACE}/{PROGRAM}": b"new"}


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Layers with noise are large: not always read to their end, and fetched in pieces."""
    monkeypatch.setattr(tree, "_SMALL", 1 << 16)
    monkeypatch.setattr(layers, "_LEAST_PIECE", 1 << 14)


def source_of(name: object, folder: Path) -> ImageSource:
    kept = folder / "kept"
    return ImageSource(find_image(str(name), kept), kept, ignore)


def image(folder: Path, *content: Blob) -> ImageSource:
    return source_of(write_oci(folder / "image", list(content)), folder)


def read(source: ImageSource, *paths: str) -> list[bytes]:
    return [file.read_bytes() for path in paths if (file := source.file(path)) is not None]


@pytest.mark.parametrize("first", ["usr/x", "var/cache/.wh.apt", "opt-site/x"])
def test_a_newer_server_is_found_in_whatever_order_its_layer_is_written(tmp_path, serve, first):
    newer = layer({first: b"", **NEW, **NOISE})
    assert read(image(tmp_path, OLD, newer), PROGRAM, OWN_STUB) == [b"new", b"new"]
    if first != "usr/x":  # which nobody writes first who knows what follows
        registry = serve(OLD, newer)
        assert read(source_of(f"{registry.name}:t", tmp_path), PROGRAM) == [b"new"]


@pytest.mark.parametrize("above", [True, False], ids=["above the server", "below it"])
def test_of_an_image_by_its_tag_a_large_layer_without_the_server_is_not_read_whole(
    serve, tmp_path, above
):
    server, large = layer(NEW), layer({"usr/x": b"", **NOISE})
    registry = serve(server, large) if above else serve(large, server)
    assert read(source_of(f"{registry.name}:t", tmp_path), PROGRAM) == [b"new"]
    assert registry.sent < len(large.content) / 2


def test_a_server_in_a_single_layer_is_found_in_whatever_order_that_is_written(tmp_path):
    source = image(tmp_path, layer({"var/cache/.wh.apt": b"", **NEW, **NOISE}))
    assert read(source, PROGRAM, OWN_STUB) == [b"new", b"new"]


def test_a_layer_above_the_server_cannot_be_hidden_by_a_registry_that_lies_about_it(
    serve, tmp_path
):
    newer = layer({**NEW, **NOISE})
    registry = serve(OLD, newer)
    lie = layer({"usr/x": b"", **NOISE}).content
    registry.blobs[newer.digest] = lie.ljust(len(newer.content), b"\0")[: len(newer.content)]
    pinned = f"{registry.name}@{registry.document.digest}"
    with pytest.raises(BuildError, match=r"what should be sha256:\w+\.\.\. has sha256"):
        source_of(pinned, tmp_path)
    registry.blobs[newer.digest] = newer.content
    assert read(source_of(pinned, tmp_path), PROGRAM) == [b"new"]


def sparse_file() -> bytes:
    """Return a tar whose file has a map of its holes, in which a number is none."""
    member = tarfile.TarInfo("x")
    member.pax_headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}
    member.size = 512
    return member.tobuf(tarfile.PAX_FORMAT) + b"none\n".ljust(512, b"\0")


@pytest.mark.parametrize(
    "instead",
    [
        b"<html>please log in</html>" * 10_000,
        layer({"../x": NOISE["var/noise"]}).content,
        sparse_file(),
    ],
    ids=["a page", "a path that climbs out", "a sparse file without a map"],
)
def test_bytes_that_are_not_the_layer_s_are_asked_for_again_by_the_next_command(
    serve, tmp_path, instead
):
    server = layer({**NEW, **NOISE})
    registry = serve(server)
    registry.blobs[server.digest] = instead.ljust(len(server.content), b" ")[: len(server.content)]
    with pytest.raises(BuildError, match=r"what should be sha256:\w+\.\.\. has sha256"):
        source_of(f"{registry.name}:t", tmp_path)
    registry.blobs[server.digest] = server.content
    assert read(source_of(f"{registry.name}:t", tmp_path), PROGRAM) == [b"new"]


def libraries(source: ImageSource, *names: str) -> dict[str, bytes]:
    return {name: path.read_bytes() for name, path in source.libraries(set(names)).items()}


@pytest.mark.parametrize(
    ("above", "found"),
    [
        ({f"{LIB}/libssl.so.3": b"new"}, {"libssl.so.3": b"new", "libbar.so.1": b"bar"}),
        ({f"{LIB}/.wh.libssl.so.3": b""}, {"libbar.so.1": b"bar"}),
    ],
    ids=["replaced", "removed"],
)
def test_a_library_that_a_layer_above_has_changed_does_not_come_back(tmp_path, above, found):
    base = layer({f"{LIB}/libssl.so.3": b"old", f"{LIB}/libbar.so.1": b"bar", **NOISE})
    source = image(tmp_path, base, layer(NEW), layer(above))
    assert libraries(source, "libssl.so.3").get("libssl.so.3") == found.get("libssl.so.3")
    assert libraries(source, "libssl.so.3", "libbar.so.1") == found


def test_a_library_is_found_whose_link_and_whose_folder_s_link_are_in_layers_below(tmp_path):
    base = layer({"./": None, "lib64": LIB, f"{LIB}/libbar.so.1.2": b"bar"})
    link = layer({"usr/local/lib/libbar.so.1": "/lib64/libbar.so.1.2"})
    assert libraries(image(tmp_path, base, link, layer(NEW)), "libbar.so.1") == {
        "libbar.so.1": b"bar"
    }


def test_libraries_stay_where_they_are_while_others_are_looked_for(tmp_path):
    base = layer({f"{LIB}/libone.so.1": b"one", f"{LIB}/libtwo.so.1": b"two"})
    source = image(tmp_path, base, layer(NEW))
    one = source.libraries({"libone.so.1"})["libone.so.1"]
    source.libraries({"libtwo.so.1"})
    assert one.read_bytes() == b"one"


def test_layers_larger_than_those_with_the_libraries_are_not_read(serve, tmp_path):
    larger = layer({"usr/x": b"", **NOISE})
    registry = serve(layer({f"{LIB}/libbar.so.1": b"bar"}), larger, layer(NEW))
    source = source_of(f"{registry.name}:t", tmp_path)
    assert libraries(source, "libbar.so.1") == {"libbar.so.1": b"bar"}
    assert registry.sent < len(larger.content) / 2


def test_a_hard_link_out_of_the_servers_folder(tmp_path):
    files: Files = {"a/x": b"outside", "a/y": b"library", **NEW}
    links = {
        f"{PLACE}/lib/x": "a/x",
        f"{PLACE}/lib/same": f"{PLACE}/lib/x",
        f"{LIB}/libz.so.1": "a/y",
    }
    source = image(tmp_path, layer(files, links))
    assert read(source, "lib/x", "lib/same", PROGRAM) == [b"outside", b"outside", b"new"]
    assert libraries(source, "libz.so.1") == {"libz.so.1": b"library"}


def test_a_hard_link_to_a_file_of_another_layer_outside_the_server_is_named(tmp_path):
    upper = layer(NEW, {f"{PLACE}/lib/x": "a/x"})
    with pytest.raises(
        BuildError, match="a hard link to a/x, which is not in that layer"
    ) as caught:
        image(tmp_path, layer({"a/x": b"outside"}), upper)
    assert "docker cp" in str(caught.value.remedy)
