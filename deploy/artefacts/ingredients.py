"""What an artefact is made from, as the manifest, its list of parts and its provenance have it."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version

from deploy.artefacts.base_image import BaseImage
from deploy.artefacts.components import (
    Component,
    of_agent,
    of_base,
    of_environment,
    of_models,
    of_triton,
)
from deploy.artefacts.labels import Source
from deploy.artefacts.manifest import Kind
from deploy.artefacts.provenance import Build, Input
from deploy.artefacts.request import BuildRequest
from deploy.artefacts.system import System
from deploy.deployment.deployment import DEFAULT_MODELS
from deploy.environment.agent import agent_digest
from deploy.environment.environment import Environment
from deploy.environment.serving import compiler_of, serving_digest
from deploy.host.files import digest_of
from deploy.host.paths import ENVIRONMENT_SOURCE, MODEL_REPOSITORY


@dataclass(frozen=True)
class Ingredients:
    """What an artefact is made from.

    Attributes:
        environment: It is made.
        base: The image below, and what is installed in it; None for a packed environment.
        tools: Versions of what makes it, beside Python, pip and the compiler.
        details: What else the manifest says.
    """

    kind: Kind
    request: BuildRequest
    environment: Environment
    source: Source
    base: tuple[BaseImage, System] | None = None
    tools: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)

    @property
    def models(self) -> str:
        """The digest of the models."""
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
        base = {"base": str(self.base[0])} if self.base is not None else {}
        return {**facts, **base, **self.details, **self.tools}

    def parts(self) -> Iterator[Component]:
        """Yield what lies in the artefact."""
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
            Input("lock", "", environment.lock.digest),
            Input("numl_serving", "", serving_digest(ENVIRONMENT_SOURCE)),
            Input("environment", "", environment.digest),
            Input("models", "", self.models),
        ]
        parameters: dict[str, str] = {"target": self.kind, "flavour": request.flavour}
        if self.base is not None:
            triton, (image, _) = of_triton(request.triton), self.base
            inputs.append(Input("numl_sync", "", agent_digest()))
            inputs.append(Input("triton", triton.purl, triton.sha256))
            inputs.append(Input("base", image.name, image.digest.removeprefix("sha256:")))
            parameters |= {"base": request.base, "triton": request.triton.release}
        if self.kind == "sif":
            parameters["compressor"] = request.compressor
        tools = {"python": platform.python_version(), "pip": version("pip")}
        compiler = compiler_of(ENVIRONMENT_SOURCE)
        tools |= {"compiler": compiler.strip()} if compiler is not None else {}
        return Build(
            source=self.source,
            parameters=parameters,
            inputs=inputs,
            tools={**tools, **self.tools},
        )
