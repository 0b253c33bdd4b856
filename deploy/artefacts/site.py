"""A site's models in an image: their environments, each a layer of its own, and its labels.

An environment shares what NuGraph's, or one before it, has already: a file of the same content is a
link to that one. In a .sif mksquashfs stores such files once by itself.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.environment.cpython import IMAGE_PREFIX
from deploy.environment.environment import Environment
from deploy.environment.given import GivenEnvironment, planned
from deploy.environment.tars import write_prefix
from deploy.host.console import Say
from deploy.host.files import sha256_of
from deploy.triton.stage import StagedModel

KITS = "numl"
ENVIRONMENTS = Path("/opt/numl/environments")
"""Where an image has the environments of a site's models."""
LAYERS = "environments"
MODELS_LABEL = "org.numlkit.site.models"
ENVIRONMENTS_LABEL = "org.numlkit.site.environments"
_MARK = "# The environments of a site's own models."
# A Python finds its environment by where these really are.
_OF_EACH = ("bin/", "lib/libpython")


@dataclass(frozen=True)
class SiteContent:
    """A site's models as an image has them, and the environments that they name.

    ``name`` is part of the image's name.
    """

    name: str
    models: tuple[StagedModel, ...]
    environments: Mapping[str, Environment]

    @property
    def labels(self) -> dict[str, str]:
        """What an image says about them, for a launch that finds it."""
        if not self.models:
            return {}
        facts = {
            name: {
                "python": environment.interpreter.short_version,
                "numpy": planned(environment).numpy,
                "digest": environment.digest,
            }
            for name, environment in self.environments.items()
        }
        return {
            MODELS_LABEL: ",".join(model.name for model in self.models),
            ENVIRONMENTS_LABEL: json.dumps(facts, sort_keys=True),
        }


KIT_ALONE = SiteContent(KITS, (), {})


def kits_beside(own: Iterable[StagedModel]) -> tuple[str, ...]:
    """Return the kit's models that an image has beside a site's own, which replace their like."""
    taken = {model.name for model in own}
    return tuple(name for name in DEFAULT_MODELS if name not in taken)


def models_in(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(filter(None, labels.get(MODELS_LABEL, "").split(",")))


def environments_in(labels: Mapping[str, str]) -> dict[str, GivenEnvironment]:
    """Return the environments of a site's models that an image has, by name."""
    found = {}
    for name, facts in json.loads(labels.get(ENVIRONMENTS_LABEL, "{}")).items():
        place = ENVIRONMENTS / name
        libpython = place / "lib" / f"libpython{facts['python']}.so.1.0"
        found[name] = GivenEnvironment(
            path=place, packed=False, activates=True, libpython=libpython, **facts
        )
    return found


def write_layers(
    base: Environment, environments: Mapping[str, Environment], folder: Path, say: Say
) -> None:
    """Write each environment as a layer, without what ``base`` or one before it has."""
    folder.mkdir()
    there: dict[tuple[str, str], Path] = {}
    earlier = (Path(IMAGE_PREFIX), base.folder)
    for name, environment in environments.items():
        say(f"writing the layer of environment {name}")
        place, prefix = earlier
        there = {(path, content): place / path for path, content in _contents(prefix)} | there
        links = shared(list(_contents(environment.folder)), there)
        earlier = (ENVIRONMENTS / name, environment.folder)
        with (folder / f"{name}.tar").open("wb") as out:
            write_prefix(out, environment.folder, root=str(earlier[0]).lstrip("/"), links=links)


def shared(
    files: Sequence[tuple[str, str]], there: Mapping[tuple[str, str], Path]
) -> dict[str, str]:
    """Return what each file that is there already is a link to, by its path.

    A package is shared as a whole or not at all: its modules may look for what is beside them.

    Args:
        files: Paths below an environment, and what tells their contents apart.
        there: Where an image has such a path with such a content.
    """
    # NuGraph's environment has few modules compiled: those of the same sources are no difference.
    differing = (each for each in files if each not in there and not each[0].endswith(".pyc"))
    own = {_package(path) for path, _ in differing}
    return {
        path: str(there[path, content])
        for path, content in files
        if (path, content) in there and (_package(path) is None or _package(path) not in own)
    }


def _package(path: str) -> str | None:
    """Return the package that a path is of; None for the interpreter's own files."""
    _, found, below = path.partition("/site-packages/")
    return below.partition("/")[0] if found else None


def _contents(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_file() and not path.is_symlink() and not name.startswith(_OF_EACH):
            yield name, f"{path.stat().st_mode} {sha256_of(path)}"


def dockerfile(text: str, environments: Mapping[str, Environment]) -> str:
    """Return the Dockerfile with a layer for each environment."""
    assert _MARK in text
    layers = [f"ADD {LAYERS}/{name}.tar /" for name in environments]
    return text.replace(_MARK, "\n".join([_MARK, *layers]))
