"""What an artefact consists of, as CycloneDX 1.6 lists it (https://cyclonedx.org/docs/1.6/json).

dpkg's records say what is installed in a base image.
"""

import io
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import docker
from docker.errors import NotFound

from deploy import __version__
from deploy.artefacts.cyclonedx import document
from deploy.artefacts.docker_client import unstarted
from deploy.artefacts.image import BaseImage
from deploy.artefacts.site import SiteContent
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.environment.agent import agent_digest, sync_lock
from deploy.environment.environment import Environment
from deploy.environment.lock import read_pins
from deploy.environment.private_python import CHANNEL, pins
from deploy.environment.serving import serving_digest
from deploy.host.errors import BuildError
from deploy.host.files import sha256_of
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY
from deploy.triton.release import TritonRelease
from numl_formats.repository import WEIGHTS_FILE

_QHULL = "cmeel-qhull"  # its library is in numl_serving's wheel
_FIELD = re.compile(r"^([A-Za-z-]+): *(.*)$", re.MULTILINE)
_LOCKED = re.compile(r"^([\w.-]+)==([^\s;\\]+)", re.MULTILINE)
_SETTING = re.compile(r'^([A-Z_]+)="?([^"\n]*)"?$', re.MULTILINE)


class Package(NamedTuple):
    """An installed package."""

    name: str
    version: str
    architecture: str


@dataclass(frozen=True)
class System:
    """A distribution, as ``debian`` and ``12``, and its packages, by name."""

    id: str
    version: str
    packages: tuple[Package, ...]


def system_of_tree(root: Path) -> System:
    """Return what is installed below ``root``; BuildError if dpkg's status is missing."""

    def read(path: str) -> str:
        try:
            return (root / path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise _without(path) from None

    return _read_system(read)


def system_of_image(client: docker.DockerClient, image: str) -> System:
    """Return what is installed in an image; BuildError if dpkg's status is not in it."""

    def read(path: str) -> str:
        try:
            chunks, _ = client.api.get_archive(container, f"/{path}")
        except NotFound:
            raise _without(path) from None
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as tar:
            content = tar.extractfile(tar.next() or path)
            return content.read().decode() if content is not None else ""

    with unstarted(client, image) as container:
        return _read_system(read)


def _read_system(read: Callable[[str], str]) -> System:
    release = dict(_SETTING.findall(read("usr/lib/os-release")))
    found = []
    for paragraph in re.split(r"\n{2,}", read("var/lib/dpkg/status")):
        fields = dict(_FIELD.findall(paragraph))
        if fields.get("Status", "").endswith(" installed"):
            found.append(Package(fields["Package"], fields["Version"], fields["Architecture"]))
    return System(release.get("ID", "linux"), release.get("VERSION_ID", ""), tuple(sorted(found)))


def _without(path: str) -> BuildError:
    cause = f"the base image has no /{path}: its packages cannot be listed"
    return BuildError(cause, "use a base made of Debian or Ubuntu packages")


@dataclass(frozen=True)
class Component:
    """One part; fields that do not apply are empty.

    Attributes:
        kind: What CycloneDX calls it.
        purl: Its package URL (https://github.com/package-url/purl-spec).
        sha256: Digest of the one file that it comes as.
        facts: What else identifies it.
    """

    kind: Literal[
        "application", "container", "file", "library", "machine-learning-model", "operating-system"
    ]
    name: str
    version: str = ""
    purl: str = ""
    sha256: str = ""
    facts: tuple[tuple[str, str], ...] = ()


def of_environment(environment: Environment) -> Iterator[Component]:
    """Yield the parts of an environment that is made: interpreter, packages, ``numl_serving``."""
    interpreter = environment.interpreter
    if interpreter.private:
        for pin in pins():
            which = f"build={pin.build}&channel={CHANNEL}&subdir={pin.subdir}&type=conda"
            purl = f"{_purl('conda', pin.name, pin.version)}?{which}"
            yield Component("library", pin.name, pin.version, purl, pin.sha256)
    else:
        name, facts = "python", (("identity", interpreter.identity),)
        purl = _purl("generic", name, interpreter.version)
        yield Component("application", name, interpreter.version, purl, facts=facts)
        # Its libraries are the host's, of whatever package.
        for path in sorted((environment.folder / "lib").glob("lib*.so*")):
            if path.is_file() and not path.is_symlink():
                yield Component("file", f"lib/{path.name}", sha256=sha256_of(path))
    yield from _of_lock(environment)
    made = next(environment.site_packages.glob("numl_serving-*.dist-info"))
    number = made.name.removeprefix("numl_serving-").removesuffix(".dist-info")
    sources = (("sources.sha256", serving_digest(ENVIRONMENT_SOURCE)),)
    purl = _purl("generic", "numl-serving", number)
    yield Component("library", "numl-serving", number, purl, facts=sources)
    yield _of_pypi(_QHULL, version(_QHULL))


def of_kit(lock: Path) -> Iterator[Component]:
    """Yield the parts of the kit's own wheel: what it needs, as locked, and what it bundles."""
    for name, number in _LOCKED.findall(lock.read_text(encoding="utf-8")):
        yield _of_pypi(name, number)
    sources = (("sources.sha256", serving_digest(ENVIRONMENT_SOURCE)),)
    yield Component("library", "numl-serving", facts=sources)
    yield from of_models(MODEL_REPOSITORY, DEFAULT_MODELS)
    yield _of_pypi(_QHULL, version(_QHULL))


def of_agent(python: str) -> Iterator[Component]:
    """Yield the parts of the sync agent for a Python (``X.Y``)."""
    for name, (number, sha256) in read_pins(sync_lock(python)).items():
        yield _of_pypi(name, number, sha256)
    name, facts = "numl-sync", (("sources.sha256", agent_digest(python)),)
    yield Component(
        "application", name, __version__, _purl("generic", name, __version__), "", facts
    )


def of_triton(release: TritonRelease) -> Component:
    facts: tuple[tuple[str, str], ...]
    facts = (("tritonserver", release.server), ("release", release.release))
    if release.wheel is None:
        name, facts = "tritonserver", (*facts, ("origin", release.origin))
        purl, sha256 = _purl("generic", name, release.server), release.digest.partition(":")[2]
        return Component("application", name, release.server, purl, sha256, facts)
    name, _, number = release.wheel.requirement.partition("==")
    return Component(
        "application", name, number, _purl("pypi", name, number), release.wheel.sha256, facts
    )


def of_models(repository: Path, models: Sequence[str]) -> Iterator[Component]:
    """Yield the weights of models in a repository, by their digests."""
    for model in models:
        for path in sorted((repository / model).glob(f"*/{WEIGHTS_FILE}")):
            yield Component("machine-learning-model", model, sha256=sha256_of(path))


def of_site(site: SiteContent) -> Iterator[Component]:
    """Yield the packages of a site's environments, and the files of its models."""
    for environment in site.environments.values():
        yield from _of_lock(environment)
    yield from of_site_models(site)


def of_site_models(site: SiteContent) -> Iterator[Component]:
    """Yield the files of a site's models, by their digests."""
    for model in site.models:
        for path, source in model.copies.items():
            yield Component("file", f"{model.name}/{path}", sha256=sha256_of(source))


def of_base(base: BaseImage, system: System) -> Iterator[Component]:
    digest = base.digest.removeprefix("sha256:")
    name, _, tag = base.name.rpartition(":")
    facts = (("image", str(base)),)
    yield Component("container", name, tag, sha256=digest, facts=facts)
    yield Component("operating-system", system.id, system.version)
    for package in system.packages:
        where = f"arch={package.architecture}&distro={system.id}-{system.version}"
        purl = f"{_purl(f'deb/{system.id}', package.name, package.version)}?{where}"
        yield Component("library", package.name, package.version, purl)


def _of_lock(environment: Environment) -> Iterator[Component]:
    for name, number in environment.lock.versions.items():
        yield _of_pypi(name, number, environment.lock.hashes.get(name, ""))


def _of_pypi(name: str, number: str, sha256: str = "") -> Component:
    plain = re.sub(r"[-_.]+", "-", name).lower()
    return Component("library", plain, number, _purl("pypi", plain, number), sha256)


def _purl(kind: str, name: str, number: str) -> str:
    return f"pkg:{kind}/{quote(name, safe='')}@{quote(number, safe=':')}"


def sbom(kind: str, name: str, parts: Iterable[Component], *, epoch: int) -> str:
    """Return the document for an artefact of a CycloneDX ``kind``; same parts, same text.

    ``epoch`` is its time (Unix, s).
    """
    # A part may be named twice: a library of the interpreter's that is another's too.
    unique = sorted(dict.fromkeys(parts), key=lambda part: (part.purl, part.name, part.sha256))
    # Two environments may have the same version as two files.
    named = Counter(part.purl for part in unique if part.purl)
    names = [
        part.purl if named[part.purl] == 1 else f"part-{n}"
        for n, part in enumerate(unique, start=1)
    ]
    components = [_component(*each) for each in zip(unique, names, strict=True)]
    content = {"components": components, "dependencies": [{"ref": name, "dependsOn": names}]}
    return document(content, epoch=epoch, about={"type": kind, "bom-ref": name, "name": name})


def _component(part: Component, ref: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": part.kind,
        "bom-ref": ref,
        "name": part.name,
        "version": part.version,
        "purl": part.purl,
        "hashes": [{"alg": "SHA-256", "content": part.sha256}] if part.sha256 else [],
        "properties": [{"name": f"numlkit:{key}", "value": value} for key, value in part.facts],
    }
    return {key: value for key, value in found.items() if value}
