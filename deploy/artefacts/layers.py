"""The layers of an image: in a registry, in an OCI folder, or in a file that ``docker save`` wrote.

No container engine takes part. What is read from a registry is kept in a folder as it comes, so
that a connection that is cut, or a command that is interrupted, goes on where it ended.
"""

import hashlib
import io
import json
import re
import tarfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import requests
from urllib3.exceptions import HTTPError

from deploy.artefacts.reference import Reference, parse_reference
from deploy.artefacts.registry import DOCUMENT_BYTES, Manifest, Registry
from deploy.host.errors import BuildError, DeniedError, PublishError
from deploy.host.files import sha256_of

_TRIES = 6  # without a byte between them
_PAUSE_S = 0.5
_CHUNK = 1 << 16
_LEAST_PIECE, _MOST_PIECE = 1 << 18, 1 << 28
_SAVE = "docker save IMAGE --output FILE"
_COPY = "skopeo copy docker://IMAGE oci:FOLDER"
_ELSEWHERE = "ask whoever runs the registry, or take the image from another"
_SHA256 = re.compile(r"sha256:[0-9a-f]{64}")
_MOST_INDEXES = 8  # in each other
# What is raised by a document in which something is missing, or is of another kind.
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_PLATFORM = {"os": "linux", "architecture": "amd64"}


@dataclass(frozen=True)
class Layer:
    """A layer; ``digest`` (``sha256:...``) and ``size`` are of its bytes as they are stored.

    ``read`` opens it at its first byte, and ``whole`` returns a file with all of it, verified.
    """

    digest: str
    size: int
    read: Callable[[], IO[bytes]]
    whole: Callable[[], Path]


@dataclass(frozen=True)
class Image:
    """An image: its name with its digest, its environment variables, its layers, lowest first.

    Attributes:
        believed: Whether it is whatever a registry says of a tag, so that what the beginning of a
            layer says of the rest need not be verified.
    """

    name: str
    digest: str
    variables: Mapping[str, str]
    layers: tuple[Layer, ...]
    believed: bool = False


def find_image(name: str, kept: Path) -> Image:
    """Return the image in a folder, in a file, or in a registry; ``kept`` holds what is fetched."""
    path = Path(name)
    if (path / "index.json").is_file():
        return _in_folder(path)
    if path.is_file():
        return _in_file(path, kept)
    if name.startswith(("/", ".")):
        there = "neither an OCI image nor a server" if path.exists() else "no such file or folder"
        raise BuildError(f"{name}: {there}", "correct the path, or name an image")
    return _in_registry(parse_reference(name), kept)


def _in_registry(reference: Reference, kept: Path) -> Image:
    registry, name = Registry(reference), reference.digest or reference.tag or "latest"
    manifest = _asked(registry, name)
    try:
        for _ in range(_MOST_INDEXES):
            listed = _for_this_platform(manifest.content) if manifest is not None else None
            if listed is None:
                break
            name, manifest = listed[0], _asked(registry, listed[0])
        else:
            raise ValueError(f"it lists an index in an index, {_MOST_INDEXES} times")
        if manifest is None:
            cause = f"registry {reference.host} has no {reference.repository}:{name}"
            raise BuildError(cause, "check the repository's name and the tag")
        image = _described(reference, registry, manifest, kept)
    except _MALFORMED as error:
        cause = f"{reference}: what its registry has at {name} is not an image: {_told(error)}"
        raise BuildError(cause, _ELSEWHERE) from None
    return replace(image, believed=not reference.digest)


def _described(reference: Reference, registry: Registry, manifest: Manifest, kept: Path) -> Image:
    def layer(about: Mapping[str, Any]) -> Layer:
        digest, size = _facts(about)
        place = kept / digest.removeprefix("sha256:")

        def read() -> IO[bytes]:
            return io.BufferedReader(Blob(registry, reference.host, digest, size, place), _CHUNK)

        return Layer(digest, size, read, partial(_fetched, read, digest, place))

    config = layer(manifest.content["config"])
    if config.size > DOCUMENT_BYTES:
        cause = f"{reference}: its configuration has {config.size} bytes"
        raise BuildError(cause, "name an image of a Triton server")
    pinned = replace(reference, tag="", digest=manifest.digest)
    return _image(
        str(pinned), manifest.digest, config.whole().read_bytes(),
        tuple(map(layer, manifest.content["layers"])),
    )  # fmt: skip


def _asked(registry: Registry, name: str) -> Manifest | None:
    manifest = _answered(registry, name)
    # Before anything in it is believed: an index names the manifest that is asked for next.
    if manifest is not None and name.startswith("sha256:") and manifest.digest != name:
        raise _other_bytes(name, manifest.digest)
    return manifest


def _answered(registry: Registry, name: str) -> Manifest | None:
    for attempt in range(_TRIES - 1):
        try:
            return registry.manifest(name)
        except DeniedError:
            raise
        except PublishError:  # it may be overloaded, or the connection cut
            time.sleep(_PAUSE_S * attempt)
    return registry.manifest(name)


def _fetched(read: Callable[[], IO[bytes]], digest: str, place: Path) -> Path:
    with read() as stream:
        while stream.read(_CHUNK):
            pass
    found = f"sha256:{sha256_of(place)}"
    if found != digest:
        place.unlink()
        raise _other_bytes(digest, found)
    return place


class Blob(io.RawIOBase):
    """A blob of a registry as a stream; each byte is fetched once, and kept at ``place``."""

    def __init__(self, registry: Registry, host: str, digest: str, size: int, place: Path) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        self._ask = partial(registry.blob, digest)
        self._what, self._size, self._at = f"{digest[:19]}... from registry {host}", size, 0
        self._file = place.open("a+b")
        self._there = self._file.tell()
        self._answer: requests.Response | None = None
        self._end = 0  # of what the answer brings

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._at == self._there < self._size:
            self._append(self._next())
        self._file.seek(self._at)
        chunk = self._file.read(min(len(buffer), self._size - self._at))
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)

    def close(self) -> None:
        if self._answer is not None:
            self._answer.close()
        self._file.close()
        super().close()

    def _append(self, chunk: bytes) -> None:
        if self._there + len(chunk) > self._size:
            cause = f"{self._what} is longer than the {self._size} bytes it should have"
            raise BuildError(cause, _ELSEWHERE)
        self._file.seek(0, io.SEEK_END)
        self._file.write(chunk)
        self._file.flush()
        self._there += len(chunk)

    def _next(self) -> bytes:
        why, refused = "", None
        for attempt in range(_TRIES):
            time.sleep(_PAUSE_S * attempt)
            try:
                if self._answer is None or self._there == self._end:
                    self._answer = self._opened()
                chunk: bytes = self._answer.raw.read(_CHUNK)
            except (HTTPError, requests.RequestException, OSError) as error:
                chunk, why = b"", f": {type(error).__name__}"
            except PublishError as error:  # it may be overloaded
                chunk, refused = b"", error
            if chunk:
                return chunk
            if self._answer is not None:
                self._answer.close()
            self._answer = None
        if refused is not None:
            raise refused
        cause = f"cannot read {self._what}: the connection is cut after {self._there} bytes{why}"
        raise BuildError(cause, "run the command again: it goes on from there")

    def _opened(self) -> requests.Response:
        if self._answer is not None:
            self._answer.close()
        # In pieces, at first small ones: a registry sends more than is read in the end.
        piece = min(max(self._there, _LEAST_PIECE), _MOST_PIECE)
        self._end = min(self._there + piece, self._size)
        answer = self._ask(self._there, self._end)
        if answer is None:
            raise BuildError(f"{self._what} is not there, though the image lists it", _ELSEWHERE)
        if answer.status_code != 206:
            # It knows no ranges, and sends everything again.
            self._end, skipped = self._size, 0
            while skipped < self._there:
                chunk = answer.raw.read(min(_CHUNK, self._there - skipped))
                if not chunk:
                    raise OSError("cut off")
                skipped += len(chunk)
        return answer


def _in_folder(folder: Path) -> Image:
    def blob(digest: str) -> Path:
        return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")

    def verified(digest: str) -> Path:
        found = f"sha256:{sha256_of(blob(digest))}"
        if found != digest:
            raise _other_bytes(digest, found)
        return blob(digest)

    def layer(about: Mapping[str, Any]) -> Layer:
        digest, size = _facts(about)
        return Layer(digest, size, lambda: blob(digest).open("rb"), partial(verified, digest))

    try:
        found, document = "", json.loads((folder / "index.json").read_bytes())
        if len(set(_for_this_platform(document) or ())) > 1:
            cause = f"{folder} has several images"  # which came into it one after another
            raise BuildError(cause, f"write one into a new folder: {_COPY}")
        while digests := _for_this_platform(document):
            found, document = digests[0], json.loads(verified(digests[0]).read_bytes())
        config = verified(_sha256(document["config"]["digest"])).read_bytes()
        layers = tuple(map(layer, document["layers"]))
        return _image(f"{folder}@{found}", found, config, layers)
    except (OSError, *_MALFORMED) as error:
        cause = f"{folder} is not an OCI image: {_told(error)}"
        raise BuildError(cause, f"write it with: {_COPY}") from None


def _in_file(path: Path, kept: Path) -> Image:
    """Return the image in a file of ``docker save``, whose layers are tars, named by content."""
    try:
        with tarfile.open(path) as saved:
            images = json.load(_member(saved, "manifest.json"))
            if len(images) != 1:
                raise ValueError(f"it has {len(images)} images")
            [about] = images
            config = _member(saved, about["Config"]).read()
            digests = [
                _sha256(f"sha256:{name.rpartition('/')[2]}" if name.startswith("blobs/") else each)
                for name, each in zip(
                    about["Layers"], json.loads(config)["rootfs"]["diff_ids"], strict=True
                )
            ]
            sizes = [saved.getmember(name).size for name in about["Layers"]]
            digest = f"sha256:{hashlib.sha256(config).hexdigest()}"
            image = _image(f"{path}@{digest}", digest, config, ())
    except ValueError as error:
        cause = f"{path} is not one image that docker save wrote: {error}"
        raise BuildError(cause, _SAVE) from None
    except (OSError, tarfile.TarError, *_MALFORMED) as error:
        # Of what is no tar, tarfile tells in a line each with which compressors it tried.
        why = str(error).partition(":\n")[0]
        raise BuildError(f"{path} is no file of docker save: {why}", _SAVE) from None

    def read(name: str) -> IO[bytes]:
        # The archive is left open as long as its member is read.
        return _member(tarfile.open(path), name)

    def whole(name: str, digest: str) -> Path:
        place = kept / digest.removeprefix("sha256:")
        place.parent.mkdir(parents=True, exist_ok=True)
        total = hashlib.sha256()
        with read(name) as source, place.open("wb") as target:
            while chunk := source.read(_CHUNK):
                total.update(chunk)
                target.write(chunk)
        if f"sha256:{total.hexdigest()}" != digest:
            raise _other_bytes(digest, f"sha256:{total.hexdigest()}")
        return place

    layers = tuple(
        Layer(digest, size, partial(read, name), partial(whole, name, digest))
        for name, digest, size in zip(about["Layers"], digests, sizes, strict=True)
    )
    return replace(image, layers=layers)


def _member(archive: tarfile.TarFile, name: str) -> IO[bytes]:
    content = archive.extractfile(name)
    if content is None:
        raise KeyError(name)
    return content


def _image(name: str, digest: str, config: bytes, layers: tuple[Layer, ...]) -> Image:
    settings = json.loads(config).get("config") or {}
    variables = dict(text.partition("=")[::2] for text in settings.get("Env") or ())
    return Image(name, digest, variables, layers)


def _facts(about: Mapping[str, Any]) -> tuple[str, int]:
    size = about["size"]
    if not isinstance(size, int) or size < 0:
        raise ValueError(f"a part has size {size!r}")
    return _sha256(about["digest"]), size


def _sha256(said: object) -> str:
    """Return a digest; BuildError if it is none: parts are filed under theirs."""
    digest = str(said)
    if not _SHA256.fullmatch(digest):
        cause = f"the image lists a part with digest {digest!r}, which is no sha256"
        raise BuildError(cause, _ELSEWHERE)
    return digest


def _for_this_platform(document: Mapping[str, Any]) -> list[str] | None:
    """Return the digests that an index has for this platform; None: it is not an index."""
    if "manifests" not in document:
        return None
    found = []
    for each in document["manifests"]:
        built_for = {**_PLATFORM, **(each.get("platform") or {})}
        if {name: built_for[name] for name in _PLATFORM} == _PLATFORM:
            found.append(_sha256(each["digest"]))
    if not found:
        cause = f"the image is not built for {'/'.join(_PLATFORM.values())}"
        raise BuildError(cause, "name one that is")
    return found


def _told(error: Exception) -> str:
    return f"it has no {error}" if isinstance(error, KeyError) else str(error)


def _other_bytes(digest: str, found: str) -> BuildError:
    cause = (
        f"what should be {digest[:19]}... has sha256 {found[7:19]}...: it was changed or damaged"
    )
    return BuildError(cause, _ELSEWHERE)
