"""Many files, one results file each: a run can be killed at any point, and goes on where it was.

``FOLDER/NAME.h5`` holds the results of ``NAME.h5``, ``FOLDER/NAME.json`` what they were made from.
A file is done when both are there: each appears by one rename, the second last. What a killed run
leaves lies in a folder of its own, which the next one removes.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from deploy import __version__
from deploy.client.pool import Transport
from deploy.client.transport import ServedModel
from deploy.events.files import EventTensors, stat_file
from deploy.events.graphs import open_events
from deploy.events.inference import Answer, Failure, infer, read_event
from deploy.events.results import ResultsWriter
from deploy.events.tables import EventFileError
from deploy.host.errors import ClientError
from deploy.host.files import locked, naming, remove_folder, sha256_of, unless_locked
from deploy.triton.config import WEIGHTS_DIGEST

_WORK = ".numlkit-work-"
_LOCK = ".lock"
_ABANDONED_S = 86400.0


@dataclass(frozen=True, slots=True)
class Record:
    """What a results file was made from, and what is in it.

    Attributes:
        file: The input's name; ``bytes``, ``mtime_ns`` and ``sha256`` are its own.
        weights: sha256 of the model's weights; empty if the server does not say it.
        results: sha256 of the results file.
    """

    file: str
    bytes: int
    mtime_ns: int
    sha256: str
    model: str
    weights: str
    kit: str
    events: int
    failed: int
    hits: int
    results: str


@dataclass(slots=True)
class Progress:
    """How far a run is, in files and in events of this run.

    ``left`` says why files are left for another run: they cannot be read, or lack an answer.
    """

    files: int
    done: int = 0
    skipped: int = 0
    events: int = 0
    failed: int = 0
    left: list[Failure] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Begin:
    path: Path


@dataclass(frozen=True, slots=True)
class _End:
    unread: Failure | None = None
    bytes: int = 0
    mtime_ns: int = 0
    sha256: str = ""


def label_files(
    files: Sequence[Path],
    folder: Path,
    model: ServedModel,
    url: str,
    connect: Callable[[], Transport],
    check: Callable[[], None],
    *,
    concurrency: int,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Progress:
    """Label the files that are not done yet; ``check`` raises what forbids to keep an answer.

    Raises:
        ClientError: Two files have one name, or the folder has results of others.
        ServerLostError: The servers stay away; what was done stays.
    """
    check_names(files, folder)
    state, weights = Progress(len(files)), weights_of(model)
    with _work_folder(folder) as work, ExitStack() as open_writer:
        todo = [path for path in files if not is_done(path, folder, model.name, weights)]
        state.done = state.skipped = len(files) - len(todo)
        progress(state)
        writer: ResultsWriter | None = None
        path, events, failed, hits = Path(), 0, 0, 0
        left: Failure | None = None  # the first reason to leave a file
        for outcome in infer(_events(todo, model), model, connect, concurrency=concurrency):
            if isinstance(outcome, _Begin):
                path, events, failed, hits, left = outcome.path, 0, 0, 0, None
                writer = ResultsWriter(work / path.name, model, url)
                open_writer.enter_context(writer)
                continue
            assert writer is not None
            if isinstance(outcome, _End):
                check()
                left = left or outcome.unread
                writer.complete = left is None
                open_writer.close()
                if left is None:
                    _keep(work / path.name, outcome, folder, model, (events, failed, hits))
                    state.done += 1
                else:
                    state.left.append(left)
            elif isinstance(outcome, Failure) and not outcome.refused:
                left = left or outcome
            elif isinstance(outcome, Failure):
                writer.fail(outcome)
                failed, state.failed = failed + 1, state.failed + 1
            elif isinstance(outcome, Answer):
                writer.add(outcome)
                events, state.events = events + 1, state.events + 1
                hits += outcome.labels.event.hits
            progress(state)
    return state


def is_done(path: Path, folder: Path, model: str, weights: str | None) -> bool:
    """Return whether a file's results are there; ClientError if they are of something else.

    ``weights`` None: of any.
    """
    record = read_record(folder / record_name(path))
    if record is None:
        return False
    if record.file != path.name:
        cause = f"{folder / record_name(path)} is of {record.file}, not of {path.name}"
        raise ClientError(cause, "rename one, or write to another folder")
    if not (folder / path.name).is_file():
        return False
    if record.model != model or weights not in (None, record.weights):
        others = "" if record.model != model else " with other weights"
        cause = f"{folder} has results of {record.model}{others}: {path.name}"
        raise ClientError(cause, "write to another folder")
    try:
        facts = path.stat()
        same = (record.bytes, record.mtime_ns) == (facts.st_size, facts.st_mtime_ns)
        same = same or record.sha256 == sha256_of(path)
    except OSError:
        return False  # why, is told of this file alone when it is read
    if not same:
        cause = f"{folder} has results of another {path.name} than {path}"
        raise ClientError(cause, "write to another folder, or remove them there")
    return True


def record_name(path: Path) -> str:
    return f"{path.stem}.json"


def read_record(path: Path) -> Record | None:
    """Return a record, or None if there is none; ClientError if it cannot be read."""
    try:
        return Record(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        remedy = "remove it if infer --into wrote it, or name another folder"
        raise ClientError(f"{path}: not a record of this kit", remedy) from None


def weights_of(model: ServedModel) -> str:
    return model.parameters.get(WEIGHTS_DIGEST, "")


def _keep(
    results: Path, read: _End, folder: Path, model: ServedModel, counts: tuple[int, int, int]
) -> None:
    record = Record(
        results.name, read.bytes, read.mtime_ns, read.sha256,
        model.name, weights_of(model), __version__, *counts, sha256_of(results),
    )  # fmt: skip
    written = results.parent / record_name(results)
    written.write_text(json.dumps(asdict(record), indent=2) + "\n", encoding="utf-8")
    results.replace(folder / results.name)
    written.replace(folder / written.name)


def check_names(files: Iterable[Path], folder: Path) -> None:
    """ClientError if results would overwrite each other, or the files."""
    seen: dict[str, Path] = {}
    for path in files:
        # Path.resolve raises for a link to itself, which is told when that file is read.
        if Path(os.path.realpath(path)).parent == Path(os.path.realpath(folder)):
            raise ClientError(f"{path} is in the folder for results", "choose another --into")
        other = seen.setdefault(path.stem, path)
        if other is not path:
            raise ClientError(f"two files have one name: {other} and {path}", "rename one")


def _events(
    files: Iterable[Path], model: ServedModel
) -> Iterator[EventTensors | Failure | _Begin | _End]:
    for path in files:
        yield _Begin(path)
        try:
            before = stat_file(path)
            with open_events(path, model.inputs, model.optional) as file:
                for index in range(len(file)):
                    yield read_event(file, index)
            digest, after = sha256_of(path), stat_file(path)
            if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
                raise EventFileError(f"{path}: changed while it was read")
        except EventFileError as error:
            yield _End(Failure(None, str(path), error.cause))
        except OSError as error:
            yield _End(Failure(None, str(path), f"{path}: {error.strerror}"))
        else:
            yield _End(None, after.st_size, after.st_mtime_ns, digest)


def remove_abandoned(folder: Path) -> None:
    """Remove what runs that were killed have left in a folder of results.

    Some file systems that hosts share have locks that others do not see (BeeGFS, Lustre and NFS as
    they may be mounted): what a run elsewhere has left is removed if nobody touched it for a day.
    """
    for name in {path.name.removesuffix(_LOCK) for path in folder.glob(f"{_WORK}*")}:
        if not name.startswith(_own_work()) and _was_touched(folder / name):
            continue
        # Another user's is theirs to remove.
        with suppress(PermissionError), unless_locked(folder / f"{name}{_LOCK}") as free:
            if free:
                _remove(folder / name)


@contextmanager
def _work_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder in ``folder``; those of runs that were killed are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    remove_abandoned(folder)
    work = Path(tempfile.mkdtemp(prefix=_own_work(), dir=folder))
    with naming(folder), locked(Path(f"{work}{_LOCK}")):
        work.mkdir(exist_ok=True)  # another run may have taken it for a killed one's
        try:
            yield work
        finally:
            _remove(work)


def _own_work() -> str:
    """Return how the work folders of this host begin."""
    return f"{_WORK}{platform.node()}--"


def _was_touched(work: Path) -> bool:
    touched = [0.0]
    for path in (work, Path(f"{work}{_LOCK}")):
        with suppress(FileNotFoundError):
            touched.append(path.stat().st_mtime)
    return time.time() - max(touched) < _ABANDONED_S


def _remove(work: Path) -> None:
    remove_folder(work)
    Path(f"{work}{_LOCK}").unlink(missing_ok=True)
