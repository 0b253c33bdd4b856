"""What goes beside an artefact: its SBOM, its provenance, and all checksums.

Provenance is an in-toto statement (https://in-toto.io/Statement/v1) with SLSA's predicate
(https://slsa.dev/spec/v1.0/provenance). Nothing in it depends on when or where the build ran: the
same inputs give the same text.
"""

import hashlib
import json
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from deploy import __version__
from deploy.artefacts.image import BaseImage
from deploy.artefacts.labels import DIRTY, UNKNOWN, Source
from deploy.artefacts.manifest import Artefact, Kind, read_manifest
from deploy.artefacts.request import BuildRequest
from deploy.artefacts.sbom import (
    Component,
    System,
    of_agent,
    of_base,
    of_environment,
    of_models,
    of_site,
    of_site_models,
    of_triton,
    sbom,
)
from deploy.artefacts.sif_file import BLOCK_KIB, LEVELS
from deploy.artefacts.site import kits_beside
from deploy.artefacts.vex import vex
from deploy.environment.agent import agent_digest
from deploy.environment.environment import Environment
from deploy.environment.serving import compiler_in, serving_digest
from deploy.host.files import digest_of, sha256_of, write_atomically
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY
from deploy.triton.advisories import advisories
from deploy.triton.release import TritonRelease

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
CHECKSUMS = "SHA256SUMS"
SIGNATURE = f"{CHECKSUMS}.sig"
# Our own names, which cannot be looked up.
_BUILD_TYPE = "urn:numlkit:build:v1"
_BUILDER = "urn:numlkit:builder"

Resource = Mapping[str, Any]


@dataclass(frozen=True)
class Build:
    """What a statement says about a build: parameters, inputs, versions of tools."""

    source: Source
    parameters: Mapping[str, str]
    inputs: Sequence[Resource]
    tools: Mapping[str, str]


def resource(name: str, sha256: str, uri: str = "") -> Resource:
    """Return a file or package as in-toto describes it; unknown fields are left out."""
    digest = {"sha256": sha256.removeprefix("sha256:")} if sha256 else {}
    found = {"uri": uri, "name": name, "digest": digest}
    return {key: value for key, value in found.items() if value}


def statement(build: Build, *, subject: Resource, sbom: Resource) -> str:
    """Return the statement about an artefact with its SBOM, as JSON.

    An image's digest is that of its configuration.
    """
    document = {
        "_type": STATEMENT,
        "subject": [subject],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": _BUILD_TYPE,
                "externalParameters": dict(build.parameters),
                "resolvedDependencies": [_source(build.source), *build.inputs],
            },
            "runDetails": {
                "builder": {"id": _BUILDER, "version": {"numlkit": __version__, **build.tools}},
                "byproducts": [sbom],
            },
        },
    }
    return json.dumps(document, indent=2) + "\n"


def with_subject(text: str, name: str, sha256: str) -> str:
    """Add another form of a statement's artefact, such as the signed one, to its subjects."""
    document = json.loads(text)
    document["subject"].append(resource(name, sha256))
    return json.dumps(document, indent=2) + "\n"


def subjects(text: str) -> set[str]:
    """Return the sha256 of each subject of a statement."""
    return {str(subject["digest"]["sha256"]) for subject in json.loads(text)["subject"]}


def _source(source: Source) -> Resource:
    revision = source.revision.removesuffix(DIRTY)
    if revision == UNKNOWN:
        return {"name": "source", "annotations": {"tree": "no git checkout"}}
    # What was changed is in no commit: then the other inputs' digests say what was built.
    tree = "clean" if revision == source.revision else "modified"
    found = {"name": "source", "digest": {"gitCommit": revision}, "annotations": {"tree": tree}}
    return {"uri": f"git+{source.url}@{revision}", **found} if source.url else found


def sbom_of(artefact: Artefact) -> str:
    return f"{_stem(artefact)}.cdx.json"


def provenance_of(artefact: Artefact) -> str:
    return f"{_stem(artefact)}.provenance.json"


def vex_of(artefact: Artefact) -> str:
    return f"{_stem(artefact)}.vex.json"


def write_vex(folder: Path, artefact: Artefact, triton: TritonRelease) -> None:
    """Write, beside an artefact's SBOM, the known vulnerabilities of the Triton in it."""
    found = advisories(triton)
    (folder / vex_of(artefact)).unlink(missing_ok=True)
    if found:
        listed = (folder / sbom_of(artefact)).read_text(encoding="utf-8")
        text = vex(listed, of_triton(triton).purl, found, epoch=artefact.created)
        write_atomically(folder / vex_of(artefact), text)


def write_statements(
    folder: Path, artefact: Artefact, parts: Iterable[Component], build: Build
) -> None:
    """Write an artefact's bill of materials, and its provenance, which has the bill's digest."""
    kind = "file" if artefact.kind == "env" else "container"
    text = sbom(kind, artefact.name, parts, epoch=artefact.created)
    write_atomically(folder / sbom_of(artefact), text)
    listed = resource(sbom_of(artefact), hashlib.sha256(text.encode()).hexdigest())
    text = statement(build, subject=resource(artefact.name, artefact.sha256), sbom=listed)
    write_atomically(folder / provenance_of(artefact), text)


def write_checksums(folder: Path, made: Artefact) -> None:
    """Write the sha256 of every artefact and its statements, as ``sha256sum -c`` reads them.

    Those of others than the one just made stay as they are listed. The signature of earlier
    checksums is removed.
    """
    sums, before = dict[str, str](), read_checksums(folder)
    for artefact in read_manifest(folder).artefacts:
        found = {artefact.name: artefact.sha256} if artefact.kind != "image" else {}
        for name in (sbom_of(artefact), provenance_of(artefact), vex_of(artefact)):
            if (folder / name).is_file():
                found[name] = sha256_of(folder / name)
        if (artefact.kind, artefact.name) != (made.kind, made.name):
            # What was changed since it was built is not to be signed as if it were built so.
            found = {name: before.get(name, digest) for name, digest in found.items()}
        sums |= found
    text = "".join(f"{digest}  {name}\n" for name, digest in sorted(sums.items()))
    path = folder / CHECKSUMS
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        (folder / SIGNATURE).unlink(missing_ok=True)
        write_atomically(path, text)


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder by file name; empty if there are none."""
    try:
        lines = (folder / CHECKSUMS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    return {name: digest for digest, _, name in (line.partition("  ") for line in lines)}


def _stem(artefact: Artefact) -> str:
    """Return the stem of the statements' names: the file's name, or the image's tag and kind."""
    if artefact.kind != "image":
        return artefact.name
    return f"{artefact.name.rpartition('/')[2].replace(':', '-')}.image"


@dataclass(frozen=True)
class Ingredients:
    """What an artefact is made from; a packed environment has no base image.

    ``tools`` are versions of the tools that make it, besides Python and pip.
    """

    kind: Kind
    request: BuildRequest
    environment: Environment
    source: Source
    base: tuple[BaseImage, System] | None = None
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def kits(self) -> tuple[str, ...]:
        """The kit's models in it, by name."""
        return kits_beside(self.request.site.models)

    @property
    def models(self) -> str:
        """The digest of the kit's models in it."""
        paths = (p for model in self.kits for p in (MODEL_REPOSITORY / model).rglob("*"))
        files = (path for path in paths if path.is_file() and path.suffix != ".pyc")
        return digest_of(files, base=MODEL_REPOSITORY)

    def facts(self) -> dict[str, str]:
        """Return what the manifest says."""
        environment = self.environment
        facts = {
            "revision": self.source.revision,
            "lock": environment.lock.digest,
            "environment": environment.digest,
            "python": environment.interpreter.version,
            "triton": self.request.triton.server,
            "models": self.models,
            "glibc": ".".join(map(str, environment.glibc)),
        }
        if self.base is not None:
            facts["base"] = str(self.base[0])
        facts |= self.request.site.labels
        if self.kind == "sif":
            compressor = self.request.compressor
            level = f"{compressor} level {LEVELS[compressor]}"
            facts["compression"] = f"{level}, blocks of {BLOCK_KIB} KiB"
        return {**facts, **self.tools}

    def parts(self) -> Iterator[Component]:
        yield from of_environment(self.environment)
        if self.base is not None:
            yield of_triton(self.request.triton)
            yield from of_agent(self.environment.lock.python)
            yield from of_models(MODEL_REPOSITORY, self.kits)
            yield from of_site(self.request.site)
            yield from of_base(*self.base)

    def build(self) -> Build:
        """Return what its provenance says, except about the artefact itself."""
        request, environment = self.request, self.environment
        inputs = [
            resource("lock", environment.lock.digest),
            resource("numl_serving", serving_digest(ENVIRONMENT_SOURCE)),
            resource("environment", environment.digest),
            resource("models", self.models),
        ]
        parameters: dict[str, str] = {"target": self.kind, "flavour": request.flavour}
        if self.base is not None:
            triton, (image, _) = of_triton(request.triton), self.base
            inputs.append(resource("numl_sync", agent_digest(environment.lock.python)))
            inputs.append(resource("triton", triton.sha256, triton.purl))
            inputs.append(resource("base", image.digest, image.name))
            parameters |= {"base": request.base, "triton": request.triton.release}
            inputs += [resource(p.name, p.sha256) for p in of_site_models(request.site)]
            inputs += [
                resource(f"environment {name}", each.digest)
                for name, each in request.site.environments.items()
            ]
        if self.kind == "sif":
            parameters["compressor"] = request.compressor
        tools = {"python": platform.python_version(), "pip": version("pip")}
        tools["compiler"] = compiler_in(environment.site_packages)
        return Build(self.source, parameters, inputs, {**tools, **self.tools})
