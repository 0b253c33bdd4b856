"""Build the image: send the context to the engine, follow what it says, name the result."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from requests.exceptions import ConnectionError as ConnectionBrokenError

from deploy.console import Say
from deploy.errors import BuildError
from deploy.files import size_of
from deploy.images.base import BaseImage
from deploy.images.engine import first_line
from deploy.images.labels import ImageFacts, labels
from deploy.images.tars import tar_chunks

_STEP = re.compile(r"Step (\d+)/(\d+) : (.+)")
_BUILT = re.compile(r"Successfully built ([0-9a-f]+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class BuiltImage:
    """An image in the engine.

    Attributes:
        tag: Its name.
        id: ``sha256:...``.
        size: Bytes of its content, unpacked.
    """

    tag: str
    id: str
    size: int


def build_image(
    client: docker.DockerClient,
    context: Path,
    *,
    base: BaseImage,
    facts: ImageFacts,
    tag: str,
    say: Say,
) -> BuiltImage:
    """Build the image and name it ``tag``; an image of that name stays until then.

    Args:
        client: The engine.
        context: As :func:`deploy.images.context.make_context` has filled it.
        base: What it stands on.
        facts: What its labels say.
        tag: ``name:tag``.
        say: Is told what happens.

    Raises:
        BuildError: With the reason, in one line, that the failing step gave.
    """
    try:
        messages = client.api.build(
            fileobj=_told(tar_chunks(context), size_of(context), say),
            custom_context=True,
            # All that is needed lies in the context.
            network_mode="none",
            use_config_proxy=False,
            buildargs={"BASE": base.reference},
            labels=labels(base, facts),
            rm=True,
            forcerm=True,
            decode=True,
        )
        built = follow(messages, say)
        repository, _, name = tag.rpartition(":")
        client.api.tag(built, repository, name, force=True)
        image = client.images.get(tag)
    except (APIError, ConnectionBrokenError) as error:
        raise BuildError(
            f"the Docker engine cannot build the image: {first_line(error)}",
            "its log may say more: journalctl -u docker",
        ) from None
    return BuiltImage(tag=tag, id=str(image.id), size=int(image.attrs["Size"]))


def follow(messages: Iterable[Mapping[str, Any]], say: Say) -> str:
    """Read what the engine says until the end; return the image's id.

    Args:
        messages: The engine's messages.
        say: Is told each step as it begins.

    Raises:
        BuildError: With the reason, in one line, that the failing step gave.
    """
    step, output, built = "the build", list[str](), ""
    for message in messages:
        if "error" in message:
            words = reason(output) or str(message["error"]).strip().splitlines()[-1]
            raise BuildError(
                f"the image cannot be built: {words} ({step})",
                "mend what it names, then repeat the command: what was built before is kept",
            )
        for line in str(message.get("stream", "")).splitlines():
            if found := _STEP.match(line):
                step, output = found[3].strip(), []
                say(f"step {found[1]} of {found[2]}: {step[:60]}")
            elif found := _BUILT.match(line):
                built = found[1]
            else:
                output.append(line)
    if not built:
        raise BuildError(f"the Docker engine ended the build without a result ({step})")
    return built


def reason(output: Iterable[str]) -> str:
    """Return the line of a step's output that says why it failed; empty if none does."""
    meant = ""
    for line in output:
        words = _COLOURS.sub("", line).strip()
        if words.startswith("{"):
            try:
                report = json.loads(words)
            except ValueError:
                continue
            if report.get("ok") is False:
                # As the check of the models says it, one line for each model.
                return f"{report['model']}: {report['error']}"
        elif words and not words.startswith(("--->", "Removing intermediate container")):
            meant = words
    return meant


def _told(chunks: Iterator[bytes], total: int, say: Say) -> Iterator[bytes]:
    """Yield ``chunks``, and say every so often how much is through."""
    sent, told = 0, 0
    for chunk in chunks:
        sent += len(chunk)
        if total and sent * 10 // total > told:
            told = sent * 10 // total
            say(f"sending {total / 1e9:.2f} GB to the engine: {min(told, 10)}0%")
        yield chunk
