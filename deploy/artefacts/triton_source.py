"""Where a Triton is taken from: an image's layers, or a folder of this host."""

import hashlib
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from deploy.artefacts.layers import Image
from deploy.artefacts.tree import Tree, holds
from deploy.host.console import Say
from deploy.host.files import digest_of
from deploy.host.programs import run, search_path
from deploy.triton.stub import STUB

PROGRAM = "bin/tritonserver"
OWN_STUB = f"backends/python/{STUB}"
# What every Triton with the Python backend has.
SERVER = (
    PROGRAM,
    OWN_STUB,
    "backends/python/libtriton_python.so",
    "backends/python/triton_python_backend_utils.py",
)
_PLACE = ("opt", "tritonserver")


class Source(Protocol):
    """Where a Triton is taken from; paths are below its own folder.

    ``release`` is what an image of NVIDIA's says about itself (``26.07``); else empty.
    """

    name: str
    digest: str
    release: str

    def file(self, path: str) -> Path | None:
        """Return where the bytes of a file are; None: it has no such file."""

    def files_below(self, folder: str) -> Iterable[tuple[str, Path]]:
        """Yield the files below a folder, by their paths below it."""

    def libraries(self, names: set[str]) -> dict[str, Path]:
        """Return those of the shared libraries that are elsewhere in it."""


class ImageSource:
    """The server in an image: the layers that hold it; others only for libraries it lacks."""

    def __init__(self, image: Image, kept: Path, say: Say) -> None:
        self.name, self.digest = image.name, image.digest
        self.release = image.variables.get("NVIDIA_TRITON_SERVER_VERSION", "")
        self._image, self._say = image, say
        self._kept, self._calls, count = kept / "libraries", 0, len(image.layers)
        for choose in (holds, lambda _layer, _place: True):
            self._tree, found = Tree(kept / "files"), False
            for number, layer in enumerate(image.layers, start=1):
                say(f"layer {number} of {count}: {layer.size / 1e6:.0f} MB")
                # Above the server of a certain image all is read, and verified: whoever could have
                # a layer there passed over would have an older server taken for the image's.
                found = (found and not image.believed) or choose(layer, _PLACE)
                if found:
                    self._tree.add(layer, lambda parts: parts[: len(_PLACE)] == _PLACE)
            # A layer that somebody put together by hand may hold its files in any order.
            if self.file(PROGRAM) is not None:
                break

    def file(self, path: str) -> Path | None:
        return self._tree.file("/".join((*_PLACE, path)))

    def files_below(self, folder: str) -> Iterator[tuple[str, Path]]:
        return self._tree.files_below("/".join((*_PLACE, folder)))

    def libraries(self, names: set[str]) -> dict[str, Path]:
        layers, read, found = self._image.layers, dict[int, Tree](), dict[str, Path]()
        scratch = Tree(self._kept / str(self._calls))
        self._calls += 1
        stems = tuple(f"{name.partition('.so')[0]}.so" for name in names)
        # The smallest first: what a server is linked to is small, what its backends need is not.
        # Those that are read lie over each other as in the image.
        for number in sorted(range(len(layers)), key=lambda number: layers[number].size):
            if len(found) == len(names):
                break
            self._say(f"looking for {', '.join(sorted(names - set(found)))}")
            read[number] = scratch.read(layers[number], lambda parts: parts[-1].startswith(stems))
            tree = Tree(scratch.kept)
            for each in sorted(read):
                tree = read[each].over(tree)
            found = {}
            for parts in sorted(tree.entries):
                if parts and parts[-1] in names and "stubs" not in parts:
                    content = tree.file("/".join(parts))
                    if content is not None:
                        found[parts[-1]] = content
        return found


class FolderSource:
    """A server in a folder of this host, whose libraries it uses."""

    def __init__(self, root: Path, backends: tuple[str, ...] = ()) -> None:
        self._root = root
        self.name = str(root)
        files = [root / path for path in SERVER if (root / path).is_file()]
        total = hashlib.sha256(digest_of(files, base=root).encode())
        # Of the rest, which may have gigabytes and is asked about at each start, size and time.
        for path, content in self._others(backends):
            facts = content.stat()
            total.update(f"\0{path}\0{facts.st_size} {facts.st_mtime_ns}".encode())
        self.digest = f"sha256:{total.hexdigest()}"
        self.release = ""

    def _others(self, backends: tuple[str, ...]) -> Iterator[tuple[str, Path]]:
        """Yield what is taken besides the server's own files: all that a copy may hold."""
        for path in sorted(self._root.iterdir()):  # its version and its terms
            if path.is_file():
                yield path.name, path
        for folder in ("lib", "caches", *(f"backends/{name}" for name in sorted(backends))):
            for name, path in self.files_below(folder):
                yield f"{folder}/{name}", path

    def file(self, path: str) -> Path | None:
        found = self._root / path
        return found.resolve() if found.is_file() else None

    def files_below(self, folder: str) -> Iterator[tuple[str, Path]]:
        top = self._root / folder
        for path in sorted(top.rglob("*")):
            if path.is_file():
                yield path.relative_to(top).as_posix(), path.resolve()

    def libraries(self, names: set[str]) -> dict[str, Path]:
        places = [
            Path(place.replace("${ORIGIN}", "$ORIGIN").replace("$ORIGIN", str(binary.parent)))
            for binary in (self._root / PROGRAM, self._root / OWN_STUB)
            for place in search_path(binary).split(":")
            if place
        ]
        listed = run(["/sbin/ldconfig", "-p"], failed="ldconfig cannot list this host's libraries")
        known = dict(re.findall(r"^\s+(\S+) \(.*x86-64.*\) => (\S+)$", listed, re.MULTILINE))
        candidates = {
            name: (*(place / name for place in places), Path(known.get(name, name)))
            for name in names
        }
        return {
            name: path.resolve()
            for name, paths in candidates.items()
            for path in reversed(paths)
            if path.is_file()
        }
