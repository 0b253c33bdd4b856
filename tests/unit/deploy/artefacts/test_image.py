from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from deploy.artefacts import build, sif
from deploy.artefacts.context import closure
from deploy.artefacts.image import BaseImage, BuiltImage, build_image, follow, reason
from deploy.artefacts.labels import Source, labels
from deploy.host.console import Console
from deploy.host.errors import BuildError
from deploy.triton.release import find_release
from tests.environments import ignore

# As a Docker 20.10 said it.
STEPS: list[dict[str, Any]] = [
    {"stream": "Step 1/3 : FROM debian"},
    {"stream": "\n"},
    {"stream": " ---> 8bf3e16aa6ba\n"},
    {"stream": "Step 2/3 : RUN /opt/numl/bin/check"},
    {"stream": "\n"},
    {"stream": " ---> Running in 6763b4cfbecc\n"},
]
FAILED = {
    "errorDetail": {"code": 1, "message": "The command '/bin/sh -c ...' returned a non-zero code"},
    "error": "The command '/bin/sh -c ...' returned a non-zero code: 1",
}
BASE = BaseImage(reference="debian@sha256:1", name="docker.io/library/debian:x", digest="sha256:1")
SOURCE = Source(revision="abc", epoch=1700000000, url="https://example.org/numlkit")


def test_each_step_is_told_and_the_image_s_id_returned():
    told: list[str] = []
    built = follow([*STEPS, {"stream": "Successfully built 26b32e21c776\n"}], told.append)
    assert built == "26b32e21c776"
    assert told == ["step 1 of 3: FROM debian", "step 2 of 3: RUN /opt/numl/bin/check"]


@pytest.mark.parametrize(
    ("messages", "cause"),
    [
        (
            [*STEPS, {"stream": "Traceback ...\nImportError: libffi.so.8: no\n"}, FAILED],
            r"^the image cannot be built: "
            r"ImportError: libffi\.so\.8: no \(RUN /opt/numl/bin/check\)$",
        ),
        ([*STEPS, FAILED], "returned a non-zero code: 1"),
        (STEPS, "without a result"),
    ],
    ids=["a step's own last words", "a step that said nothing", "an engine that goes away"],
)
def test_why_an_image_was_not_built_is_told(messages, cause):
    with pytest.raises(BuildError, match=cause):
        follow(messages, ignore)


ANSWERS = """\
{"python": "3.11.7"}
{"model": "/opt/numl/models/cpu/nugraph2/1", "ok": false, "error": "wrong answer"}
{"model": "/opt/numl/models/cpu/nugraph3/1", "ok": true, "error": null}
{a library: that prints}
Removing intermediate container 6763b4cfbecc"""


@pytest.mark.parametrize(
    ("output", "why"),
    [
        (ANSWERS, "/opt/numl/models/cpu/nugraph2/1: wrong answer"),
        (
            'E1123 server.cc:2607] "Internal: failed to load all models"\nnugraph3: not ready\n',
            "nugraph3: not ready",
        ),
        ("\x1b[91mE: no such file\x1b[0m", "E: no such file"),
    ],
    ids=["a wrong answer before others", "last words after a line that sounds worse", "no colours"],
)
def test_a_step_s_output_says_why_it_failed(output, why):
    assert reason(output) == why


def test_all_labels(monkeypatch):
    monkeypatch.setattr("deploy.artefacts.labels.serving_digest", lambda _source: "5e41")
    python = SimpleNamespace(short_version="3.11")
    environment = SimpleNamespace(flavour="cpu", digest="e2bc", interpreter=python)
    assert labels(SOURCE, environment, find_release("24.10")) | BASE.labels == {
        "org.opencontainers.image.title": "numlkit",
        "org.opencontainers.image.description": "NuGraph2 and NuGraph3 served by NVIDIA Triton",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.source": "https://example.org/numlkit",
        "org.opencontainers.image.revision": "abc",
        "org.opencontainers.image.created": "2023-11-14T22:13:20Z",
        "org.opencontainers.image.version": "0.1.0",
        "org.opencontainers.image.base.name": "docker.io/library/debian:x",
        "org.opencontainers.image.base.digest": "sha256:1",
        "org.numlkit.flavour": "cpu",
        "org.numlkit.triton.release": "24.10",
        "org.numlkit.triton.server": "2.51.0",
        "org.numlkit.python": "3.11",
        "org.numlkit.environment.digest": "e2bc",
        "org.numlkit.serving.digest": "5e41",
    }


def test_the_libraries_that_are_needed_directly_or_not_and_no_others(monkeypatch):
    links = {
        "server": ["a", "libc.so.6"],
        "a": ["b", "server"],
        "b": ["a"],
        "unused": ["b"],
    }
    there = {name: Path(name) for name in ("a", "b", "unused")}
    monkeypatch.setattr("deploy.artefacts.context.needed_by", lambda path: links[path.name])
    assert closure([Path("server")], there) == {"a", "b"}


class Engine:
    """A Docker engine on which somebody else gives the tag to their image, as soon as it is set."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.api = SimpleNamespace(build=self._build, tag=self._tag)
        self.images = SimpleNamespace(get=self._get)

    def _build(self, **_: object) -> Iterator[dict[str, str]]:
        yield {"stream": "Successfully built 26b32e21c776\n"}

    def _tag(self, _: str, repository: str, name: str, force: bool) -> None:
        assert force
        self.tags[f"{repository}:{name}"] = "sha256:theirs"

    def _get(self, name: str) -> Any:
        ids = {"26b32e21c776": "sha256:26b32e21c776ours"}
        found = self.tags.get(name) or ids.get(name, name)
        return SimpleNamespace(id=found, attrs={"Id": found, "Size": 1, "Config": {}})


def test_an_image_is_recorded_by_its_id_though_another_takes_its_tag(tmp_path):
    built = build_image(Engine(), tmp_path, base=BASE, labels={}, tag="n/numl:t", say=ignore)
    assert built == BuiltImage("n/numl:t", "sha256:26b32e21c776ours", 1)


def test_a_sif_is_made_from_the_image_that_was_built_though_another_takes_its_tag(
    tmp_path, monkeypatch
):
    engine, made = Engine(), list[object]()
    engine.tags["n/numl:t"] = "sha256:theirs"

    @contextmanager
    def exported(_: Engine, image: str) -> Iterator[Iterator[bytes]]:
        made.append(image)
        yield iter(())

    monkeypatch.setattr(sif, "exported", exported)
    monkeypatch.setattr(sif, "build_sandbox", lambda *_: (tmp_path / "sandbox").mkdir())
    monkeypatch.setattr(sif, "describe", lambda _, origin, **__: made.append(origin.source))
    monkeypatch.setattr(sif, "tar_chunks", lambda _: iter(()))
    monkeypatch.setattr(sif.SifBuilder, "_finish", lambda *words: words[3].touch())
    monkeypatch.setattr(build._Build, "_record", lambda *_: None)
    tools = SimpleNamespace(apptainer=SimpleNamespace(path=None), mksquashfs=None)
    request = SimpleNamespace(out=tmp_path, sif=tmp_path / "numl.sif")
    place = SimpleNamespace(client=engine, tools=tools, source=SOURCE)
    ours = BuiltImage("n/numl:t", "sha256:ours", 1)
    build._Build(request, place, Console("quiet"))._sif(tmp_path, (ours, (BASE, None)))
    assert made == ["n/numl:t", "sha256:ours"]
