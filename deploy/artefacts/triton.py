"""A Triton of any release: taken from an image or a folder, and read.

What serves is copied into the cache, in NVIDIA's layout, with each library that it is linked to in
``lib``. Nothing about the release is looked up: the server itself says what it is.
"""

import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from deploy.artefacts.image import stock_name
from deploy.artefacts.layers import find_image
from deploy.artefacts.triton_source import (
    OWN_STUB,
    PROGRAM,
    SERVER,
    FolderSource,
    ImageSource,
    Source,
)
from deploy.deployment.deployment import RELEASE_PATTERN, absolute_if_there, named_triton
from deploy.deployment.gpus import GpuNeeds, cuda_needs
from deploy.environment.elf import glibc_needed, is_elf
from deploy.host.console import Say
from deploy.host.errors import BuildError, DeploymentError
from deploy.host.files import built_folder, locked, naming, remove_folder, work_folder
from deploy.host.paths import cache_folder
from deploy.host.programs import needed_by
from deploy.triton.command import TRITON_ROOT, image_flags
from deploy.triton.distribution import TritonDistribution
from deploy.triton.release import RELEASES, TritonRelease
from deploy.triton.stub import python_of_stub

PYTHON_ONLY = ("python",)
FACTS = "triton.json"
_CACHE = "caches/local/libtritoncache_local.so"
_VERSION = "TRITON_VERSION"
_TERMS = re.compile(r"(?i)[^/]*licen[cs]e[^/]*|[^/]*notice[^/]*")
# What every base has, or the host of a GPU gives; and libpython, which the environment brings.
_GIVEN = re.compile(
    r"ld-linux-x86-64\.so\.2|lib(c|m|dl|rt|pthread|resolv|util|anl|gcc_s|stdc\+\+|z)\.so\.\d+"
    r"|lib(cuda|nvidia-ml)\.so\.1|libpython3\.\d+\.so\.1\.0"
)
_CUDA = re.compile(r"libcudart\b[^/]*?\.so\.(\d+)(?:\.(\d+))?")
_SAID = re.compile(r"server_version\s*\|\s*(\d+\.\d+\.\d+)")
_FLAG = re.compile(r"^\s+--([a-z][\w-]+)", re.MULTILINE)
_QUIET = ("--allow-http=false", "--allow-grpc=false", "--allow-metrics=false")
_ANSWER_S = 60.0
_NAMES = "--triton 26.07, HOST/REPOSITORY:TAG, or the path of a file or folder that is there"
_FACTS = TypeAdapter(TritonRelease)


def find_triton(name: str, say: Say, *, backends: tuple[str, ...] = PYTHON_ONLY) -> TritonRelease:
    """Return a Triton, fetched and read if the cache does not have it.

    Args:
        name: A release (``26.07``: NVIDIA's image of it), an image in a registry, the path of an
            OCI folder, of a file of ``docker save``, or of a folder like ``/opt/tritonserver``.
        backends: Which of its backends are kept.
    """
    if name in RELEASES and backends == PYTHON_ONLY:
        return RELEASES[name]
    name = stock_image(name)
    pinned = None
    if "@sha256:" in name and not Path(name).exists():
        pinned = _root(f"sha256:{name.rpartition(':')[2]}", backends)
    if pinned is not None:
        filed = pinned.with_name(pinned.readlink().name) if pinned.is_symlink() else pinned
        if (there := _recall(filed)) is not None:  # then nobody needs to be asked
            return there
    if (Path(name) / PROGRAM).is_file():
        folder = FolderSource(Path(name).resolve(), _more(backends))
        return _take(folder.digest, backends, lambda: folder, say)
    layers = cache_folder() / "layers"
    waiting = "another command is fetching an image; waiting"
    with (
        locked(layers.with_suffix(".lock"), waiting=lambda: say(waiting)),
        work_folder(layers.with_name("unpacked")) as scratch,
        naming(cache_folder()),
    ):
        say(f"looking at {name}")
        image = find_image(name, layers)
        release = _take(image.digest, backends, lambda: ImageSource(image, scratch, say), say)
        remove_folder(layers)
        if pinned is not None and pinned != release.root:
            # The digest is an index's; what is taken is filed under that of the image it lists.
            pinned.unlink(missing_ok=True)
            pinned.symlink_to(_root(image.digest, backends).name)
    return release


def named_by_flag(text: str) -> str:
    """Return what the flag ``--triton`` of a command names; DeploymentError if it cannot be."""
    try:
        return named_triton(absolute_if_there(text, Path()))
    except ValueError as error:
        raise DeploymentError(f"--triton: {error}", _NAMES) from None


def stock_image(triton: str) -> str:
    """Return the stock image that a deployment's ``triton`` means."""
    return stock_name(triton) if RELEASE_PATTERN.fullmatch(triton) else triton


def _root(digest: str, backends: tuple[str, ...]) -> Path:
    more = "".join(f"-{name}" for name in sorted(_more(backends)))
    return cache_folder() / "triton" / f"{digest.removeprefix('sha256:')[:16]}{more}"


def _more(backends: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in backends if name not in PYTHON_ONLY)


def _take(
    digest: str, backends: tuple[str, ...], source: Callable[[], Source], say: Say
) -> TritonRelease:
    root = _root(digest, backends)
    if (there := _recall(root)) is not None:  # without its lock: it may be another user's cache
        return there
    with locked(root.with_name(f"{root.name}.lock")):
        if (there := _recall(root)) is not None:
            return there
        with built_folder(root) as folder:
            found = source()
            _lay_out(found, folder, backends, say)
            say("asking the server what it is")
            release = read_triton(folder, found, backends)
            (folder / FACTS).write_bytes(_FACTS.dump_json(release, indent=1))
    return replace(release, root=root)


def _recall(root: Path) -> TritonRelease | None:
    """Return what was taken; None: nothing, or what it is cannot be read, as after a power cut."""
    with suppress(FileNotFoundError, ValidationError):
        return replace(_FACTS.validate_json((root / FACTS).read_bytes()), root=root)
    return None


def _lay_out(source: Source, folder: Path, backends: tuple[str, ...], say: Say) -> None:
    """Copy the server, its backends, its terms, and all libraries that these are linked to."""
    for path in (*SERVER, _CACHE, _VERSION):
        content = source.file(path)
        if content is not None:
            _copy(content, folder / path)
        elif path in SERVER:
            cause = f"{source.name} has no {path}: it is no Triton with the Python backend"
            remedy = "name an image like NVIDIA's, or a folder like /opt/tritonserver"
            raise BuildError(cause, remedy)
    for path, content in source.files_below(""):
        if _TERMS.fullmatch(path):
            _copy(content, folder / path)
    for name in _more(backends):
        files = list(source.files_below(f"backends/{name}"))
        if not files:
            raise BuildError(f"{source.name} has no backend {name}", "leave it out of --backends")
        for path, content in files:
            _copy(content, folder / "backends" / name / path)
    for program in (folder / PROGRAM, folder / OWN_STUB):
        program.chmod(0o755)
    say("the libraries that it is linked to")
    _add_libraries(source, folder)


def _copy(content: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(content, place)


def _add_libraries(source: Source, folder: Path) -> None:
    library = folder / "lib"
    library.mkdir(exist_ok=True)
    waiting = list(_binaries(folder))
    done: set[Path] = set()
    while waiting:
        missing: dict[str, Path] = {}
        while waiting:
            binary = waiting.pop()
            done.add(binary)
            for name in needed_by(binary):
                beside, placed = binary.parent / name, library / name
                if _GIVEN.fullmatch(name) or beside in done or placed in done:
                    continue
                if beside.is_file():
                    waiting.append(beside)
                elif (content := source.file(f"lib/{name}")) is not None:
                    _copy(content, placed)
                    waiting.append(placed)
                else:
                    missing[name] = binary
        found = source.libraries(set(missing)) if missing else {}
        for name, binary in missing.items():
            if name not in found:
                cause = f"{source.name} has no {name}, which its {binary.name} is linked to"
                raise BuildError(cause, "name the whole image, or install the library here")
            _copy(found[name], library / name)
            waiting.append(library / name)


def _binaries(folder: Path) -> Iterator[Path]:
    """Yield what the server starts or loads."""
    for path in (folder / PROGRAM, folder / OWN_STUB, folder / _CACHE):
        if path.is_file():
            yield path
    for path in sorted((folder / "backends").glob("*/libtriton_*.so")):
        if is_elf(path):
            yield path


def read_triton(root: Path, source: Source, backends: tuple[str, ...]) -> TritonRelease:
    """Read what a Triton in NVIDIA's layout is, from its files and from what it says.

    Raises:
        BuildError: If it is no Triton, or lacks a flag that the kit uses.
    """
    triton = TritonDistribution(root, "")
    said = _ask(triton)
    flags = frozenset(_FLAG.findall(said))
    if flags:
        _check_flags(source.name, flags)
    server = version_in(said) or ""
    with suppress(OSError):
        server = server or (root / _VERSION).read_text(encoding="utf-8").strip()
    if not re.fullmatch(r"\d+\.\d+\.\d+", server):
        cause = f"{source.name} does not say which Triton it is, and cannot be asked on this host"
        raise BuildError(cause, "use a host whose glibc is as new as its own")
    files = [path for path in root.rglob("*") if path.is_file()]
    names = [path.name for path in triton.libraries.iterdir()]
    return TritonRelease(
        release=source.release if RELEASE_PATTERN.fullmatch(source.release) else server,
        server=server,
        python=python_of_stub(triton.stub),
        glibc=glibc_needed(files),
        gpu_needs=_gpu_needs(f"Triton {server}", names),
        origin=source.name,
        digest=source.digest,
        flags=flags or None,
        backends=backends,
    )


def _ask(triton: TritonDistribution) -> str:
    """Return what the server says with ``--help``, and as it starts, if it can run here."""
    variables = {"LD_LIBRARY_PATH": str(triton.libraries), "PATH": "/usr/bin:/bin"}
    said = ""
    for words in (["--help"], asking()[1:]):
        with suppress(OSError, subprocess.TimeoutExpired):
            said += subprocess.run(
                [triton.executable, *words], env=variables, text=True, errors="replace",
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                timeout=_ANSWER_S, check=False,
            ).stdout  # fmt: skip
    return said


def asking() -> tuple[str, ...]:
    """Return the command by which a server in a container says what it is, and ends."""
    program = str(TRITON_ROOT / PROGRAM)
    return (program, "--model-repository=/no-such-repository", *_QUIET)


def version_in(said: str) -> str | None:
    """Return the version of a server from what it says as it starts."""
    found = _SAID.search(said)
    return found[1] if found is not None else None


def _check_flags(name: str, flags: frozenset[str]) -> None:
    for flag in image_flags():
        plain = flag.removeprefix("--").partition("=")[0]
        if plain not in flags:
            cause = f"{name}: its server does not know --{plain}, which the kit starts it with"
            raise BuildError(cause, "use a newer release of Triton")


def _gpu_needs(software: str, libraries: Iterable[str]) -> GpuNeeds | None:
    for name in libraries:
        if found := _CUDA.search(name):
            try:
                return cuda_needs(software, f"{found[1]}.{found[2] or 0}")
            except KeyError:
                cause = f"{software} is built for CUDA {found[1]}, which this kit does not know"
                raise BuildError(cause, "use a newer version of the kit") from None
    return None
