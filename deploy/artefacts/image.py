"""Build the image: send the context to the Docker engine, follow its messages, tag the result."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import docker
from docker.errors import APIError
from requests.exceptions import ConnectionError as ConnectionBrokenError

from deploy.artefacts.base_image import BaseImage
from deploy.artefacts.docker_client import first_line
from deploy.environment.tars import tar_chunks
from deploy.host.console import Say
from deploy.host.errors import BuildError
from deploy.host.failures import diagnose
from deploy.host.files import size_of

_STEP = re.compile(r"Step (\d+)/(\d+) : (.+)")
_BUILT = re.compile(r"Successfully built ([0-9a-f]+)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class BuiltImage:
    """An image in the engine; ``size`` is in bytes, unpacked."""

    tag: str
    id: str
    size: int


def build_image(
    client: docker.DockerClient,
    context: Path,
    *,
    base: BaseImage,
    labels: Mapping[str, str],
    tag: str,
    say: Say,
) -> BuiltImage:
    """Build the image and tag it; an older image keeps the tag until then.

    :func:`deploy.artefacts.context.make_context` fills the context. The base adds its labels.
    """
    try:
        messages = client.api.build(
            fileobj=_with_progress(tar_chunks(context), size_of(context), say),
            custom_context=True,
            # The context has all that is needed.
            network_mode="none",
            use_config_proxy=False,
            buildargs={"BASE": base.reference},
            labels={**labels, **base.labels},
            rm=True,
            forcerm=True,
            decode=True,
        )
        built = follow(messages, say)
        repository, _, name = tag.rpartition(":")
        client.api.tag(built, repository, name, force=True)
        image = client.images.get(tag)
    except (APIError, ConnectionBrokenError) as error:
        cause = f"the Docker engine cannot build the image: {first_line(error)}"
        raise BuildError(cause, "its log may say more: journalctl -u docker") from None
    return BuiltImage(tag=tag, id=str(image.id), size=int(image.attrs["Size"]))


def follow(messages: Iterable[Mapping[str, Any]], say: Say) -> str:
    """Read the engine's messages; return the image's id, or raise the failing step's reason."""
    step, output, built = "the build", list[str](), ""
    for message in messages:
        if "error" in message:
            words = reason(output) or str(message["error"]).strip().splitlines()[-1]
            # The server says in its log only why a model is not ready.
            known = diagnose("\n".join(output)) if words.endswith("not ready") else None
            words += f": {known.cause}" if known is not None else ""
            cause = f"the image cannot be built: {words} ({step})"
            raise BuildError(cause, "fix that and repeat the command; finished layers are kept")
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
    last = ""
    for line in output:
        words = _COLOURS.sub("", line).strip()
        if words.startswith("{"):
            try:
                report = json.loads(words)
            except ValueError:
                continue
            if report.get("ok") is False:
                # The check of the models writes one such line for each of them.
                return f"{report['model']}: {report['error']}"
        elif words and not words.startswith(("--->", "Removing intermediate container")):
            last = words
    return last


def _with_progress(chunks: Iterator[bytes], total: int, say: Say) -> Iterator[bytes]:
    sent, shown = 0, 0
    for chunk in chunks:
        sent += len(chunk)
        if total and sent * 10 // total > shown:
            shown = sent * 10 // total
            say(f"sending {total / 1e9:.2f} GB to the engine: {min(shown, 10)}0%")
        yield chunk
