"""What an artefact is made from, as the manifest, its list of parts and its provenance have it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from deploy.artefacts.base_image import BaseImage
from deploy.artefacts.labels import Source
from deploy.artefacts.manifest import Kind
from deploy.artefacts.request import BuildRequest
from deploy.artefacts.sbom import (
    Component,
    System,
    of_agent,
    of_base,
    of_environment,
    of_models,
    of_triton,
)
from deploy.artefacts.sif_file import BLOCK_KIB, LEVELS
from deploy.artefacts.statements import Build, resource
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.environment.agent import agent_digest
from deploy.environment.environment import Environment
from deploy.environment.serving import compiler_of, serving_digest
from deploy.host.files import digest_of
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY


@dataclass(frozen=True)
class Ingredients:
    """What an artefact is made from; a packed environment has no base image.

    ``tools`` are versions of what makes it, beside Python, pip and the compiler.
    """

    kind: Kind
    request: BuildRequest
    environment: Environment
    source: Source
    base: tuple[BaseImage, System] | None = None
    tools: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> str:
        paths = (p for model in DEFAULT_MODELS for p in (MODEL_REPOSITORY / model).rglob("*"))
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
        if self.kind == "sif":
            compressor = self.request.compressor
            level = f"{compressor} level {LEVELS[compressor]}"
            facts["compression"] = f"{level}, blocks of {BLOCK_KIB} KiB"
        return {**facts, **self.tools}

    def parts(self) -> Iterator[Component]:
        yield from of_environment(self.environment)
        if self.base is not None:
            yield of_triton(self.request.triton)
            yield from of_agent()
            yield from of_models(MODEL_REPOSITORY, DEFAULT_MODELS)
            yield from of_base(*self.base)

    def build(self) -> Build:
        """Return what its provenance says, but for the artefact itself."""
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
            inputs.append(resource("numl_sync", agent_digest()))
            inputs.append(resource("triton", triton.sha256, triton.purl))
            inputs.append(resource("base", image.digest, image.name))
            parameters |= {"base": request.base, "triton": request.triton.release}
        if self.kind == "sif":
            parameters["compressor"] = request.compressor
        tools = {"python": platform.python_version(), "pip": version("pip")}
        compiler = compiler_of(ENVIRONMENT_SOURCE)
        if compiler is not None:
            tools["compiler"] = compiler.strip()
        return Build(self.source, parameters, inputs, {**tools, **self.tools})
