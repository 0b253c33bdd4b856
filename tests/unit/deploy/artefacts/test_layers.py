"""Layers out of a registry that is played, with its faults, and what they amount to."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from functools import partial
from pathlib import Path

import pytest

from deploy.artefacts import layers
from deploy.artefacts.layers import Layer, find_image
from deploy.artefacts.reference import parse_reference
from deploy.artefacts.registry import Registry
from deploy.artefacts.tree import Parts, Tree, holds
from deploy.host.errors import BuildError, PublishError
from tests.releases import Blob, layer, manifest, write_oci

SERVER = ("opt", "tritonserver")
NOISE = hashlib.shake_256(b"noise").digest(400_000)


@pytest.mark.parametrize("ranges", [True, False], ids=["by ranges", "without ranges"])
def test_a_connection_that_is_cut_again_and_again_goes_on_where_it_ended(serve, tmp_path, ranges):
    large = layer({"opt/tritonserver/noise": NOISE})
    registry = serve(large)
    [found] = find_image(f"{registry.name}:t", tmp_path).layers
    registry.cut = 30_000
    with found.read() as stream:
        stream.read(200_000)
    registry.refuses = 2
    registry.cut, registry.ranges = (30_000 if ranges else 1 << 40), ranges
    assert found.whole().read_bytes() == large.content
    if ranges:
        assert registry.sent < 1.2 * len(large.content)


def test_a_connection_that_brings_nothing_more_is_named_and_what_came_is_kept(serve, tmp_path):
    large = layer({"noise": NOISE})
    registry = serve(large)
    [found] = find_image(f"{registry.name}:t", tmp_path).layers
    registry.cut, registry.ranges = 100_000, False
    with pytest.raises(BuildError, match="the connection is cut after 100000 bytes") as caught:
        found.whole()
    assert caught.value.remedy == "run the command again: it goes on from there"
    registry.cut, registry.ranges = 1 << 40, True
    assert found.whole().read_bytes() == large.content


def test_bytes_of_another_digest_are_refused(serve, tmp_path):
    good = layer({"opt/tritonserver/noise": NOISE})
    registry = serve(good)
    pinned = f"{registry.name}@{registry.document.digest}"
    [found] = find_image(pinned, tmp_path).layers
    registry.blobs[good.digest] = bytes(len(good.content))
    with pytest.raises(BuildError, match=r"what should be sha256:\w+\.\.\. has sha256"):
        found.whole()
    registry.blobs[good.digest], registry.ranges = good.content + b"more", False
    with pytest.raises(BuildError, match="is longer than the"):
        found.whole()
    registry.document = Blob(registry.document.content + b" ")
    with pytest.raises(BuildError, match=r"what should be sha256:\w+\.\.\. has sha256"):
        find_image(pinned, tmp_path)


def index(digest: str) -> Blob:
    return Blob(json.dumps({"manifests": [{"digest": digest}]}).encode())


def test_a_pinned_index_of_other_bytes_is_refused_before_what_it_lists_is_asked_for(
    serve, tmp_path
):
    registry, evil = serve(layer({"good": b""})), manifest([layer({"evil": b""})])[0]
    asked = index(registry.document.digest)
    pinned = f"{registry.name}@{asked.digest}"
    registry.manifests = {asked.digest: asked, evil.digest: evil}
    assert find_image(pinned, tmp_path).digest == registry.document.digest
    registry.manifests[asked.digest] = index(evil.digest)
    with pytest.raises(BuildError, match=r"what should be sha256:\w+\.\.\. has sha256"):
        find_image(pinned, tmp_path)
    assert not any(evil.digest in path for path, _ in registry.asked)


CONFIG = Blob(b'{"config": {}}')
PART = {"digest": CONFIG.digest, "size": len(CONFIG.content)}


@pytest.mark.parametrize(
    ("document", "config"),
    [
        ({"schemaVersion": 1, "fsLayers": []}, None),
        ({"config": None, "layers": []}, None),
        ({"config": PART, "layers": [{"digest": CONFIG.digest}]}, None),
        ({"config": PART, "layers": [{**PART, "size": "many"}]}, None),
        ({"config": PART, "layers": [{**PART, "size": 1e999}]}, None),
        ({"config": PART, "layers": None}, None),
        ({"config": PART, "layers": ["x"]}, None),
        ({"config": PART, "layers": [{**PART, "size": -1}]}, None),
        ({"manifests": None}, None),
        ({"manifests": ["x"]}, None),
        ({"manifests": [{**PART, "platform": "linux"}]}, None),
        (None, b"hello"),
        (None, b"[]"),
        (None, b"[" * 100_000),
        (None, b'{"config": "x"}'),
        (None, b'{"config": {"Env": [null]}}'),
    ],
)
def test_a_registry_with_a_malformed_manifest_is_named(serve, tmp_path, document, config):
    blob = CONFIG if config is None else Blob(config)
    of_config = {"config": {"digest": blob.digest, "size": len(blob.content)}, "layers": []}
    listed, registry = Blob(json.dumps(document or of_config).encode()), serve()
    registry.manifests["t"], registry.blobs = listed, {blob.digest: blob.content}
    with pytest.raises(BuildError, match=rf"^{registry.name}:t: .* at t is not an image: ."):
        find_image(f"{registry.name}:t", tmp_path)
    folder = write_oci(tmp_path / "image", [])
    for each in (blob, listed):
        place = folder / "blobs/sha256" / each.digest.removeprefix("sha256:")
        place.write_bytes(each.content)
    (folder / "index.json").write_bytes(index(listed.digest).content)
    with pytest.raises(BuildError, match=r"image is not an OCI image: ."):
        find_image(str(folder), tmp_path)


@pytest.mark.parametrize("what", ["manifest", "tags", "token"])
@pytest.mark.parametrize("packed", [b"", gzip.compress(bytes(10_000_000))], ids=["plain", "gzip"])
def test_a_manifest_that_never_ends_is_refused(serve, tmp_path, monkeypatch, what, packed):
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    monkeypatch.setattr(layers, "_TRIES", 2)
    bad, good = serve(layer({})), serve(layer({}))
    bad.packed, bad.endless = packed, b"" if packed else b"[" * 100_000
    good.challenge = f'Bearer realm="http://{bad.address}/token"'
    ask = {
        "manifest": partial(find_image, f"{bad.name}:t", tmp_path),
        "tags": Registry(parse_reference(f"{bad.name}:t")).tags,
        "token": partial(find_image, f"{good.name}:t", tmp_path),
    }[what]
    with pytest.raises(
        PublishError, match=rf"what is at http://{bad.address}/.* has more than 8 MiB"
    ):
        ask()


def test_an_index_in_an_index_is_followed(serve, tmp_path):
    registry = serve(layer({"good": b""}))
    inner = index(registry.document.digest)
    outer = index(inner.digest)
    registry.manifests = {"t": outer, inner.digest: inner}
    assert find_image(f"{registry.name}:t", tmp_path).digest == registry.document.digest
    for _ in range(20):
        registry.manifests[outer.digest] = outer
        outer = index(outer.digest)
    registry.manifests["t"], registry.asked = outer, []
    with pytest.raises(BuildError, match="is not an image: it lists an index in an index"):
        find_image(f"{registry.name}:t", tmp_path)
    assert len(registry.asked) < 20


def test_an_index_lists_manifests_by_their_sha256_or_is_refused(serve, tmp_path):
    registry = serve(layer({}))
    for listed in ("latest", registry.document.digest.removeprefix("sha256:"), "sha512:00"):
        registry.manifests["t"] = index(listed)
        with pytest.raises(BuildError, match=f"digest '{listed}', which is no sha256"):
            find_image(f"{registry.name}:t", tmp_path)


@pytest.mark.parametrize(
    ("paths", "there"),
    [
        (["bin", "opt", "opt/tritonserver/bin/x", "usr"], True),
        (["usr/x", "opt/tritonserver/x"], True),  # in no order
        (["opt/.wh.tritonserver"], True),
        ([".wh.opt"], True),
        (["opt/.wh..wh..opq"], True),
        (["opt/.wh.other", "opt/tritonserver.txt", "usr/opt/tritonserver"], False),
        (["opt/tritonserver-2/x"], False),
    ],
)
def test_layers_that_change_the_server(tmp_path, paths, there):
    [found] = in_folder(tmp_path, layer(dict.fromkeys(paths, b"")))
    assert holds(found, SERVER) == there


def in_folder(folder: Path, *content: Blob) -> tuple[Layer, ...]:
    return find_image(str(write_oci(folder / "image", list(content))), folder / "kept").layers


def anything(_parts: Parts) -> bool:
    return True


def tree_of(folder: Path, *content: Blob) -> Tree:
    tree = Tree(folder / "files")
    for each in in_folder(folder, *content):
        tree.add(each, anything)
    return tree


def laid_over(folder: Path, *content: Blob) -> Tree:
    """Return the tree of layers that are read on their own, from the uppermost."""
    tree = Tree(folder / "files")
    for each in reversed([tree.read(one, anything) for one in in_folder(folder, *content)]):
        tree = tree.over(each)
    return tree


@pytest.mark.parametrize("lay", [tree_of, laid_over])
def test_whiteouts_links_and_replacements_amount_to_what_a_container_sees(tmp_path, lay):
    lower = layer(
        {
            "a/gone": b"1",
            "a/kept": b"2",
            "b/one": b"3",
            "b/two/three": b"4",
            "c": None,
            "c/below": b"5",
            "lib64": "usr/lib",
            "usr/lib/x.so.1": "x.so.1.2",
            "usr/lib/x.so.1.2": b"library",
            "up": "../../../../usr/lib/x.so.1",
            "round": "round",
        },
        {"d/linked": "a/kept"},
    )
    middle = layer(
        {"a/.wh.gone": b"", "b/new": b"6", "b/.wh..wh..opq": b"", "c": b"now a file"},
        {"e": "a/kept"},
    )
    upper = layer({"a/kept": b"new", "./": None})
    tree = lay(tmp_path, lower, middle, upper)
    lower_paths = ("a/gone", "a/kept", "b/one", "b/two/three", "c", "c/below", "d/linked")
    seen = {
        path: content.read_bytes()
        for path in (*lower_paths, "e", "b/new", "lib64/x.so.1", "/up")
        if (content := tree.file(path)) is not None
    }
    assert seen == {
        "a/kept": b"new",
        "b/new": b"6",
        "c": b"now a file",
        "d/linked": b"2",
        "e": b"2",
        "lib64/x.so.1": b"library",
        "/up": b"library",
    }
    assert [path for path, _ in tree.files_below("b")] == ["new"]
    with pytest.raises(BuildError, match="its symbolic links never end"):
        tree.file("round")


def test_a_hard_link_to_nothing_in_any_layer_leads_nowhere(tmp_path):
    dangling = layer({}, {"b": "a"})
    assert laid_over(tmp_path, layer({}), dangling).file("b") is None


@pytest.mark.parametrize(
    ("files", "links"),
    [
        ({"../etc/passwd": b""}, {}),
        ({"opt/tritonserver/../../../etc/passwd": b""}, {}),
        ({"/etc/passwd": b""}, {}),
        ({"a": b""}, {"b": "../../etc/passwd"}),
    ],
)
def test_a_layer_with_a_path_that_climbs_out_is_refused(tmp_path, files, links):
    with pytest.raises(BuildError, match="has a path that climbs out of the image"):
        tree_of(tmp_path, layer(files, links))


def test_a_symbolic_link_leads_nowhere_outside_the_image(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("of this host")
    bad = layer({"opt/bad": str(secret), "opt/folder": str(tmp_path), "opt/folder/new": b"x"})
    tree = tree_of(tmp_path, bad)
    assert tree.file("opt/bad") is None
    assert not (tmp_path / "new").exists()


def test_what_is_no_tar_is_named(tmp_path):
    [found] = in_folder(tmp_path, layer({}))
    damaged = Layer(found.digest, 9, lambda: io.BytesIO(b"(\xb5/\xfd zstd"), found.whole)
    with pytest.raises(BuildError, match=r"cannot be read as tar or tar\.gz"):
        holds(damaged, SERVER)


def test_a_layer_compressed_in_parts_is_read_to_its_end(tmp_path):
    whole = gzip.decompress(layer({"etc/x": b"x", "opt/tritonserver/x": b"here"}).content)
    parts = [whole[start : start + 512] for start in range(0, len(whole), 512)]
    estargz = Blob(b"".join(map(gzip.compress, parts)))
    assert tree_of(tmp_path, estargz).file("opt/tritonserver/x").read_bytes() == b"here"
    [found] = in_folder(tmp_path, estargz)
    assert holds(found, SERVER)


@pytest.mark.parametrize(
    ("kind", "size", "there", "said"),
    [
        (tarfile.XHDTYPE, 1 << 24, 1 << 24, "a header has 16777216 bytes"),
        (tarfile.GNUTYPE_LONGNAME, 1 << 24, 1 << 24, "a header has 16777216 bytes"),
        (tarfile.REGTYPE, 1 << 20, 10240, r"tar or tar\.gz: unexpected end of data"),
        (tarfile.REGTYPE, 1 << 40, 10240, r"tar or tar\.gz: unexpected end of data"),
    ],
    ids=["a header that fills the memory", "a name that does", "a file cut short", "a huge one"],
)
def test_a_layer_that_is_damaged_or_made_to_harm_is_refused(tmp_path, kind, size, there, said):
    member = tarfile.TarInfo("opt/tritonserver/x")
    member.type, member.size = kind, size
    bad = Blob(gzip.compress(member.tobuf(tarfile.GNU_FORMAT) + bytes(there), 1))
    with pytest.raises(BuildError, match=said):
        tree_of(tmp_path, bad)


def saved(folder: Path, content: bytes, digest: str) -> str:
    """Write what ``docker save`` does of an image with one layer, which is named by a digest."""
    files = {
        "1/layer.tar": content,
        "c.json": json.dumps({"rootfs": {"diff_ids": [digest]}}).encode(),
        "manifest.json": b'[{"Config":"c.json","Layers":["1/layer.tar"]}]',
    }
    (folder / "saved.tar").write_bytes(gzip.decompress(layer(files).content))
    return str(folder / "saved.tar")


def test_a_file_of_docker_save_is_read_in_place(tmp_path):
    content = gzip.decompress(layer({"opt/tritonserver/x": b"here"}).content)
    file = saved(tmp_path, content, Blob(content).digest)
    [found] = find_image(file, tmp_path / "kept").layers
    tree = Tree(tmp_path / "files")
    assert holds(found, SERVER)
    tree.add(found, anything)
    assert tree.file("opt/tritonserver/x").read_bytes() == b"here"


def test_a_folder_with_several_images_is_refused(tmp_path):
    lists = []
    for content in (b"of May", b"of June"):  # as skopeo copy does it without a tag
        folder = write_oci(tmp_path / "image", [layer({"opt/tritonserver/x": content})])
        lists += json.loads((folder / "index.json").read_text())["manifests"]
    (folder / "index.json").write_text(json.dumps({"manifests": lists}))
    with pytest.raises(BuildError, match="image has several images"):
        find_image(str(folder), tmp_path / "kept")


@pytest.mark.parametrize("digest", ["sha256:../mine", "{}/mine"])
def test_a_file_of_docker_save_whose_digests_are_paths_writes_nowhere(tmp_path, digest):
    mine = tmp_path / "mine"
    mine.write_text("precious")
    file = saved(tmp_path, b"its own", digest.format(tmp_path))
    with pytest.raises(BuildError, match="which is no sha256"):
        [each.whole() for each in find_image(file, tmp_path / "kept").layers]
    assert mine.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("./nowhere", "no such file"),
        ("{}", "neither an OCI image nor a server"),
        ("{}/empty.tar", "is no file of docker save: [^\n]*$"),
        ("{}/two.tar", "is not one image that docker save wrote: it has 2 images"),
    ],
)
def test_what_is_no_image_is_named(tmp_path, name, said):
    (tmp_path / "empty.tar").touch()
    two = gzip.decompress(layer({"manifest.json": b"[{}, {}]"}).content)
    (tmp_path / "two.tar").write_bytes(two)
    with pytest.raises(BuildError, match=said):
        find_image(name.format(tmp_path), tmp_path / "kept")
