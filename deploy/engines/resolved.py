"""A deployment resolved on this host, each thing looked up once."""

import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

from deploy.deployment.deployment import Deployment, find_site_models
from deploy.deployment.gpus import ON_CPU, DevicePlan, plan_gpus
from deploy.deployment.plan import Broken
from deploy.deployment.state import is_loopback
from deploy.engines.checkpoints import ensure_imported, imported_folder
from deploy.environment.environment import Environment, plan_environment
from deploy.environment.given import GivenEnvironment, check_usable, look_into, planned
from deploy.environment.lock import Flavour, read_lock
from deploy.environment.sources import find_source, locked_flavour
from deploy.host.console import Say
from deploy.host.errors import (
    EnvironmentSetupError,
    GpuError,
    KitError,
    ModelError,
    RepositoryError,
)
from deploy.host.files import digest_of, marks_of
from deploy.host.gpu import GpuStack, find_gpus
from deploy.host.paths import DIST, ENVIRONMENT_SOURCE, MODEL_REPOSITORY
from deploy.triton.config import ModelConfig, config_of, is_complete, made_for_cpu, stub_count
from deploy.triton.release import RELEASES, TritonRelease
from deploy.triton.response_cache import uses_cache
from deploy.triton.site import SiteModel, read_site_model, with_callees
from deploy.triton.stage import VERSION, find_model
from numl_formats.repository import CODE, CONFIG, DATA_FILES


@contextmanager
def of_model(model: str) -> Iterator[None]:
    """Have an error name the model that it is about."""
    try:
        yield
    except ModelError:
        raise
    except KitError as error:
        raise ModelError(model, error.cause, error.remedy) from error


@dataclass(frozen=True)
class Resolved:
    """A deployment, and what it resolves to on this host.

    Every attribute is looked up when it is first read, and only then: planning, preparing and
    checking a launch see the same values, and doctor can report on models where a GPU is missing.
    Reading an attribute raises a `KitError` if what it stands for is not usable; a `ModelError`, if
    only one model cannot be served.

    Attributes:
        broken: The deployment's models that are left out, by name.
        baked: The environments that the image has of the site's models, by name.
        wheels: Where a build has the packages of those that it makes; None: they are downloaded.
        python: What a build makes them of; None: of what this host has.
    """

    deployment: Deployment
    broken: Mapping[str, Broken] = field(default_factory=dict)
    baked: Mapping[str, GivenEnvironment] = field(default_factory=dict)
    wheels: Path | None = None
    python: Path | None = None

    @classmethod
    def of(
        cls, deployment: Deployment, baked: Mapping[str, GivenEnvironment] = MappingProxyType({})
    ) -> "Resolved":
        """Resolve a deployment; what its own models call is served too."""
        if deployment.models_dir is not None:
            models = with_callees(deployment.models_dir, deployment.models)
            deployment = deployment.model_copy(update={"models": models})
        resolved = cls(deployment, baked=baked)
        while deployment.keep_going:
            try:
                _ = resolved.made_environments
            except ModelError as error:
                resolved = resolved.without(error)
            else:
                break
        return resolved

    def without(self, error: ModelError) -> "Resolved":
        """Return what is served where one model cannot be; raises the error if that is nothing."""
        broken = {**self.broken, error.model: Broken(cause=error.cause, remedy=error.remedy)}
        if not set(self.deployment.models) - broken.keys():
            raise error
        return replace(self, broken=broken)

    @property
    def models(self) -> tuple[str, ...]:
        return tuple(model for model in self.deployment.models if model not in self.broken)

    @cached_property
    def release(self) -> TritonRelease:
        triton = self.deployment.triton
        if triton in RELEASES:
            return RELEASES[triton]
        from deploy.artefacts.triton import find_triton  # takes long, and few need it

        return find_triton(triton, lambda _: None)

    @cached_property
    def http_listen(self) -> str:
        """The address for HTTP and metrics: Triton has no TLS for them, and requests can end it."""
        deployment = self.deployment
        if deployment.listen_http is not None:
            return deployment.listen_http
        if is_loopback(deployment.listen) and deployment.tls is None:
            return deployment.listen
        return "127.0.0.1"

    @cached_property
    def kit(self) -> tuple[str, ...]:
        own = self.deployment.models_dir
        return tuple(m for m in self.models if own is None or not (own / m / CONFIG).is_file())

    @cached_property
    def site(self) -> tuple[SiteModel, ...]:
        own = self.deployment.models_dir
        if own is None:
            return ()
        for model in self.kit:
            if not (MODEL_REPOSITORY / model).is_dir():
                cause = f"no model {model!r}, neither in {own} nor among the kit's"
                raise RepositoryError(cause, f"{own} has {', '.join(find_site_models(own))}")
        found = []
        for model in self.models:
            if model not in self.kit:
                with of_model(model):
                    found.append(read_site_model(own, model))
        return tuple(found)

    @property
    def complete(self) -> bool:
        """Whether the models' configurations leave nothing for the server to complete."""
        return all(is_complete(model.config) for model in self.site)

    @property
    def uses_cache(self) -> bool:
        return uses_cache(model.config for model in self.site)

    @cached_property
    def configs(self) -> Mapping[str, ModelConfig]:
        return {m: config_of(find_model(MODEL_REPOSITORY, m)) for m in self.kit}

    @cached_property
    def own_weights(self) -> Mapping[str, Path]:
        """Where the weights that replace the tracked ones are, or will be once imported."""
        return {
            model: imported_folder(checkpoint, self.deployment.norms.get(model))
            for model, checkpoint in self.deployment.checkpoints.items()
        }

    def weights(self, model: str) -> Path:
        return self.own_weights.get(model, MODEL_REPOSITORY / model / VERSION)

    def import_checkpoints(self, say: Say) -> None:
        for model, checkpoint in self.deployment.checkpoints.items():
            ensure_imported(model, checkpoint, self.deployment.norms.get(model), say)

    @property
    def flavour(self) -> Flavour:
        """Which of the kit's environments runs the models that bring none.

        A site's models may need more than what serves the kit's on CPUs.
        """
        if self.deployment.flavour == "gpu":
            return "gpu"
        return "cpu" if any(model.runs_in_kits for model in self.site) else "serving"

    @property
    def fitting_flavours(self) -> tuple[Flavour, ...]:
        """The image flavours that have what the models need, smallest first."""
        return ("serving", "cpu") if self.flavour == "serving" else (self.flavour,)

    @property
    def uses_kits(self) -> bool:
        return bool(self.kit) or any(model.runs_in_kits for model in self.site)

    @property
    def uses_archive(self) -> bool:
        """Whether a model runs in the kit's packed environment."""
        return self.deployment.env == "packed" and self.uses_kits

    @cached_property
    def archive(self) -> Path:
        """The packed environment: the one named, else the newest one built."""
        named = self.deployment.archive
        if named is not None:
            if not named.is_file():
                raise EnvironmentSetupError(f"{named}: no such file", "--archive PATH")
            return named
        folder, flavours = DIST, self.fitting_flavours
        names = [f"numl-{each}-py{self.release.own_python or '*'}-*.tar.gz" for each in flavours]
        found = [path for name in names for path in folder.glob(name)]
        if not found:
            remedy = f"numlkit build --target env --flavour {flavours[0]}, or --archive PATH"
            raise EnvironmentSetupError(f"no packed environment in {folder}", remedy)
        return max(found, key=lambda path: path.stat().st_mtime)

    @cached_property
    def packed(self) -> GivenEnvironment:
        archive = self.archive.resolve()
        given = look_into(archive)
        check_usable(given, numpy_below=self.release.numpy_below, in_container=True)
        if given.digest is None or given.python is None:
            remedy = "--archive with one made by numlkit build --target env"
            raise EnvironmentSetupError(f"{archive} was not packed by this kit", remedy)
        return given

    @cached_property
    def made_environments(self) -> Mapping[str, Environment]:
        """The environments, made or not, of the site's models that name one by its lock."""
        repository, environments = self.deployment.models_dir, dict[str, Environment]()
        for model in self.site:
            name = model.environment_name
            if name is None or name in environments or name in self.baked:
                continue
            assert repository is not None
            with of_model(model.name):
                source = find_source(name, repository)
                flavour = locked_flavour(source, self.deployment.flavour)
                environments[name] = plan_environment(
                    flavour, source=source, relocatable=True, stub=self.release.own_python,
                    wheels=self.wheels, python=self.python,
                )  # fmt: skip
        return environments

    @cached_property
    def given_environments(self) -> Mapping[Path, GivenEnvironment]:
        """The environments that the site's models name by a path."""
        found = {}
        for model in self.site:
            if model.environment is not None:
                with of_model(model.name):
                    found[model.environment] = look_into(model.environment)
        return found

    def environment_of(self, model: SiteModel) -> GivenEnvironment | None:
        """Return a model's own environment; None if it runs in the kit's."""
        if (name := model.environment_name) is not None:
            return self.baked.get(name) or planned(self.made_environments[name])
        return self.given_environments[model.environment] if model.environment is not None else None

    @property
    def site_environments(self) -> list[Path]:
        """Where the environments of the site's models are, or will be, on this host."""
        named = (model.environment for model in self.site if model.environment is not None)
        made = (environment.folder for environment in self.made_environments.values())
        return [*dict.fromkeys(named), *made]

    def look_into_archives(self, say: Say) -> None:
        """Inspect the packed environments not inspected before, which can take a while."""
        for model in self.site:
            if model.environment is not None:
                with of_model(model.name):
                    look_into(model.environment, say)
        if self.uses_archive:
            look_into(self.archive.resolve(), say)

    @property
    def extracted_bytes(self) -> int:
        """The space that the packed environments take once the server has extracted them."""
        # Models that name the same archive share its extracted copy.
        given = dict(self.given_environments)
        if self.uses_archive:
            given[self.packed.path] = self.packed
        return sum(one.unpacked_bytes for one in given.values())

    @cached_property
    def gpus(self) -> GpuStack | GpuError:
        """The GPUs of this host; looked for only if GPUs are asked for."""
        return find_gpus()

    @cached_property
    def devices(self) -> DevicePlan:
        """The GPUs that the launch uses; none unless requested."""
        deployment = self.deployment
        if deployment.flavour == "cpu":
            return ON_CPU
        configs = [*self.configs.values(), *(model.config for model in self.site)]
        models = sum(not made_for_cpu(config) for config in configs)
        if not models:
            cause = f"none of {', '.join(self.models)} is made for a GPU"
            raise GpuError(cause, "start with --cpu")
        lock = read_lock(ENVIRONMENT_SOURCE / "locks", "gpu")
        return plan_gpus(
            deployment.devices,
            self.gpus,
            needs=tuple(needs for needs in (self.release.gpu_needs, lock.gpu_needs()) if needs),
            processes=models * (deployment.instances or 1),
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
        )

    @property
    def gpu_instances(self) -> int | None:
        """The instances of a model on each GPU; None: they run on CPUs."""
        # Waiting requests run as one batch: a second process would halve the batches.
        return (self.deployment.instances or 1) if self.devices.devices else None

    @property
    def instances(self) -> dict[str, int]:
        """How many processes serve each model; 0 if it runs in the server itself."""
        on_gpu, gpus, counts = self.gpu_instances, len(self.devices.devices), dict[str, int]()
        for model in self.site:
            # A site's own keep what their configurations say.
            versions = len(model.versions)
            counts[model.name] = stub_count(model.config, versions=versions, gpus=gpus)
        for name, config in self.configs.items():
            if on_gpu is None or made_for_cpu(config):
                counts[name] = self.deployment.instance_count()
            else:
                counts[name] = on_gpu * gpus
        return {model: counts[model] for model in self.models}

    def digest(self, runtime: str) -> str:
        """Return a digest of everything a launch would serve now, and of what its models run in."""
        total = hashlib.sha256(runtime.encode())
        for site in self.site:
            total.update(site.config.SerializeToString(deterministic=True))
            # Their weights may be large and are not the kit's: they are not read.
            more = (("stub", site.stub), ("environment", site.environment))
            for name, file in (*site.files.items(), *more):
                if file is not None:
                    total.update(os.fsencode(f"{site.name}\0{name}\0{marks_of(file)}\0"))
        for environment in self.made_environments.values():
            total.update(environment.digest.encode())
        for model in self.kit:
            folder, weights = MODEL_REPOSITORY / model, self.weights(model)
            total.update(weights.name.encode())
            files = [folder / CONFIG, folder / VERSION / CODE]
            for path in (*files, *(weights / name for name in DATA_FILES)):
                if path.is_file():
                    total.update(digest_of([path], base=path.parent).encode())
        return total.hexdigest()
