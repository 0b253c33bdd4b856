"""``published.json``, the release statement: reading it, and writing it in format 2.

A place's statement is written last, anew for every change. A reader of only this file and the files
that it names never sees a partial release.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Any, Literal

from numl_formats.errors import FormatError, StatementError, check_format
from numl_formats.published import IMAGE_NAMES, File, Image, Model, Published, Release
from numl_formats.repository import CONFIG, DATA_FILES

NAME = "published.json"
LARGEST = 16 << 20
"""Most bytes of a ``published.json`` that are read."""

_FORMS: tuple[Literal["sif", "sandbox"], ...] = ("sif", "sandbox")
_MODEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_PART = re.compile(r"(?!\.{1,2}$)[0-9A-Za-z._-]{1,200}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_LINE = re.compile(r"[0-9a-f]{16}")
_MOST = 1 << 53
_LONGEST = 1024  # characters of a path: no bucket has longer keys
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def read_published(content: bytes) -> Published:
    """Return what a ``published.json`` of format 1 or 2 says.

    Raises:
        StatementError: It is of no such format, or says what must not be: a path that leaves its
            folder, a file that is not data, a release that serves and is not there.
    """
    try:
        if len(content) > LARGEST:
            raise FormatError(f"more than {LARGEST} bytes")
        document = _parsed(content)
        if not isinstance(document, dict) or "format" not in document:
            raise FormatError("not what numlkit publish writes")
        written = document["format"]
        check_format(written, (1, 2), "what published it")
        return _published_1(document) if written == 1 else _published_2(document)
    except FormatError as error:
        # Anyone may have written it: it must not start a line, move the cursor or fill a log.
        words = "".join(letter if letter.isprintable() else " " for letter in str(error))
        raise StatementError("format", f"{NAME} cannot be used: {words[:300]}") from None


def _published_2(said: dict[str, Any]) -> Published:
    keys = "format line sequence created expires serving served last releases"
    _only(said, keys.split(), "the statement")
    line = _text(said["line"], "line")
    if not _LINE.fullmatch(line):
        raise FormatError(f"line is {line!r}, not 16 hexadecimal digits")
    expires = said["expires"]
    found = Published(
        line=line,
        sequence=_whole(said["sequence"], "sequence"),
        created=time_of(said["created"], "created"),
        expires=time_of(expires, "expires") if expires is not None else None,
        served=tuple(_whole(each, "served") for each in _list(said["served"], "served")),
        last=_whole(said["last"], "last"),
        releases=tuple(read_release(each) for each in _list(said["releases"], "releases")),
    )
    if found.served[-1:] != (_whole(said["serving"], "serving"),):
        raise FormatError(f"release {said['serving']} serves, but {list(found.served)} served")
    return _consistent(found)


def _published_1(said: dict[str, Any]) -> Published:
    _only(said, ("format", "serving", "last", "releases"), "the statement")
    releases = tuple(read_release(each, 1) for each in _list(said["releases"], "releases"))
    serving = _whole(said["serving"], "serving")
    found = Published(
        line="",
        sequence=0,
        created=max((each.created for each in releases), default=_EPOCH),
        expires=None,
        served=tuple(each.number for each in releases if each.number <= serving),
        last=_whole(said["last"], "last"),
        releases=releases,
    )
    if found.served[-1:] != (serving,):
        raise FormatError(f"release {serving} serves, but is not among its releases")
    return _consistent(found)


def _consistent(published: Published) -> Published:
    numbers = [release.number for release in published.releases]
    if numbers != sorted(set(numbers)):
        raise FormatError("its releases are not in numerical order")
    if len(set(published.served)) != len(published.served):
        raise FormatError("a release is listed twice among those that served")
    there = set(numbers)
    for number in published.served:
        if number not in there:
            raise FormatError(f"release {number} served, but is not among its releases")
    if numbers[-1] > published.last:
        raise FormatError(f"its last release is {published.last}, but it lists {numbers[-1]}")
    return published


def read_release(said: Any, written: int = 2) -> Release:
    """Return what `release_as_json` returned, which was stored as JSON.

    Args:
        written: The format of the statement that it is of.

    Raises:
        FormatError: It is something else.
    """
    brings = {"models", "image"} & _keys(said, "a release")
    _only(said, {"number", "created", "revision"} | brings, "a release")
    number = _whole(said["number"], "number of a release")
    where = f"release {number}"
    if len(brings) != 1:
        raise FormatError(f"{where} must have either models or an image")
    models = said.get("models", {})
    found = Release(
        number=number,
        created=time_of(said["created"], f"created of {where}"),
        revision=_text(said["revision"], f"revision of {where}"),
        models={
            name: _model(name, models[name], written)
            for name in sorted(_keys(models, f"models of {where}"))
        },
        image=_image(said["image"], where) if "image" in said else None,
    )
    if not found.models and found.image is None:
        raise FormatError(f"{where} has no models")
    return found


def _model(name: str, said: Any, written: int) -> Model:
    if not _MODEL.fullmatch(name):
        raise FormatError(f"{name!r} is not a model name")
    keys = _keys(said, name)
    expected = {"config"} if written == 1 else keys & {"code"}
    _only(said, {"version", "files"} | expected, name)
    version = _whole(said["version"], f"version of {name}")
    files = _files(said["files"], f"{name}/{version}")
    if written == 1:
        if not isinstance(said["config"], str):
            raise FormatError(f"config of {name} is not a text")
        config = said["config"].encode("utf-8", "replace")
        code = {path: file for path, file in files.items() if path not in DATA_FILES}
        code[CONFIG] = File(hashlib.sha256(config).hexdigest(), len(config))
        files = {path: file for path, file in files.items() if path in DATA_FILES}
        return Model(version, files, code)
    for path in files:
        if path not in DATA_FILES:
            raise FormatError(f"{name}/{version}: {path!r} is none of {', '.join(DATA_FILES)}")
    code = _files(said["code"], f"{name}/{version}") if "code" in keys else {}
    for path in code:
        if path in DATA_FILES:
            raise FormatError(f"{name}/{version}: {path!r} is not code")
    if not files and not code:
        raise FormatError(f"{name}/{version} has no files")
    return Model(version, files, code)


def _files(said: Any, where: str) -> dict[str, File]:
    paths = _keys(said, f"files of {where}")
    found = {}
    for path in sorted(paths):
        parts = path.split("/")
        if len(path) > _LONGEST or not all(map(_PART.fullmatch, parts)):
            raise FormatError(f"{where} has an invalid file name: {path!r}")
        for folder in ("/".join(parts[:n]) for n in range(1, len(parts))):
            if folder in paths:
                raise FormatError(f"{where} has an invalid file name: {folder!r}")
        _only(said[path], ("sha256", "bytes"), f"{where}/{path}")
        found[path] = _file(said[path], f"{where}/{path}")
    return found


def _file(said: dict[str, Any], where: str) -> File:
    digest, size = said["sha256"], said["bytes"]
    if not isinstance(digest, str) or not _SHA256.fullmatch(digest):
        raise FormatError(f"sha256 of {where} is not valid: {digest!r}")
    if type(size) is not int or not 0 <= size < _MOST:
        raise FormatError(f"size of {where} is not valid: {size!r}")
    return File(digest, size)


def _image(said: Any, where: str) -> Image:
    _only(said, ("name", "form", "source", "sha256", "bytes"), f"the image of {where}")
    file = _file(said, f"the image of {where}")
    for form in _FORMS:
        if said["form"] == form and said["name"] == IMAGE_NAMES[form]:
            source = _text(said["source"], f"source of {where}")
            return Image(form, source, file.sha256, file.bytes)
    raise FormatError(f"the image of {where} is {said['form']!r}, named {said['name']!r}")


def statement(published: Published) -> bytes:
    """Return the content of a ``published.json``.

    Raises:
        StatementError: It could not be read again, such as a name that is not a model's.
    """
    content = (json.dumps(_as_json(published), indent=1) + "\n").encode()
    read_published(content)
    return content


def _as_json(published: Published) -> dict[str, Any]:
    return {
        "format": 2,
        "line": published.line,
        "sequence": published.sequence,
        "created": as_time(published.created),
        "expires": as_time(published.expires) if published.expires is not None else None,
        "serving": published.serving,
        "served": list(published.served),
        "last": published.last,
        "releases": [release_as_json(release) for release in published.releases],
    }


def release_as_json(release: Release) -> dict[str, Any]:
    """Return one entry of a statement's ``releases``."""
    said: dict[str, Any] = {
        "number": release.number,
        "created": as_time(release.created),
        "revision": release.revision,
    }
    if (image := release.image) is not None:
        said["image"] = {
            "name": image.name,
            "form": image.form,
            "source": image.source,
            "sha256": image.sha256,
            "bytes": image.bytes,
        }
        return said
    said["models"] = {}
    for name, model in sorted(release.models.items()):
        said["models"][name] = {"version": model.version, "files": _files_as_json(model.files)}
        if model.code:
            said["models"][name]["code"] = _files_as_json(model.code)
    return said


def _files_as_json(files: Mapping[str, File]) -> dict[str, Any]:
    return {path: {"sha256": file.sha256, "bytes": file.bytes} for path, file in files.items()}


def _parsed(content: bytes) -> Any:
    try:
        text = content.decode("utf-8")
        return json.loads(text, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise FormatError(f"{name!r} is there twice")
        found[name] = value
    return found


def _no_number(text: str) -> None:
    raise FormatError(f"{text} is not a number")


def _keys(said: Any, where: str) -> set[str]:
    if not isinstance(said, dict):
        raise FormatError(f"{where} is not an object")
    return set(said)


def _only(said: Any, keys: Iterable[str], where: str) -> None:
    there = _keys(said, where)
    for name in sorted(set(keys) - there):
        raise FormatError(f"{name!r} of {where} is missing")
    for name in sorted(there - set(keys)):
        raise FormatError(f"{where} has {name!r}, which is not of this format")


def _list(said: Any, where: str) -> list[Any]:
    if not isinstance(said, list):
        raise FormatError(f"{where} is not a list")
    return said


def _text(said: Any, where: str) -> str:
    if not isinstance(said, str) or not said.isprintable():
        raise FormatError(f"{where} is {said!r}, not a line of text")
    return said


def _whole(said: Any, where: str) -> int:
    if type(said) is not int or not 1 <= said < _MOST:
        raise FormatError(f"{where} is {said!r}, not a number of at least 1")
    return said


def time_of(said: Any, where: str) -> datetime:
    """Return the time that `as_time` wrote; FormatError, which names ``where``, if it is none."""
    text = _text(said, where)
    try:
        # Python 3.10 knows no Z.
        found = datetime.fromisoformat(re.sub(r"Z$", "+00:00", text))
        if found.tzinfo is None:
            raise FormatError(f"{where} is {text!r}, a time without a zone")
        return found.astimezone(timezone.utc)
    except (ValueError, OverflowError):
        raise FormatError(f"{where} is {text!r}, not a time") from None


def as_time(moment: datetime) -> str:
    """Return a time as a statement has it."""
    return moment.astimezone(timezone.utc).isoformat().replace("+00:00", "Z")
