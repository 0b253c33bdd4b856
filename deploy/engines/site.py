"""A site's own models in a launch: checked, then staged with their environments."""

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from deploy.engines.resolved import Resolved, of_model
from deploy.environment.given import GivenEnvironment, check_usable
from deploy.host.console import Say
from deploy.host.errors import EnvironmentSetupError, RepositoryError
from deploy.triton.behaviours import NO_ACTIVATE
from deploy.triton.command import require_plain
from deploy.triton.config import ENSEMBLE, skipped_warmups, uses_stubs
from deploy.triton.distribution import TritonDistribution, ensure_distribution
from deploy.triton.golden import read_golden
from deploy.triton.release import TritonRelease
from deploy.triton.site import ENVIRONMENT_PARAMETER, SiteModel, called_by
from deploy.triton.stage import StagedModel
from deploy.triton.stub import StubFiles, python_of_stub, stub_of_wheel, texts_in
from numl_formats.repository import CODE, GOLDEN_FILE


@dataclass(frozen=True)
class Runtime:
    """What a server provides for models that name no environment.

    Attributes:
        environment: The kit's environment, as the server sees it.
        digest: Names what is in it.
        python: ``X.Y`` of its Python.
        stub: The stub that its models need beside them; None: the server's own fits.
        server_python: ``X.Y`` of the Python that the server's own stub is built for.
        release: The server's Triton.
        in_container: Whether the server runs in a container.
        places: Where a container sees the environments that a site's models name.
        backends: The backends that it has; None if that is not known before it runs.
    """

    environment: Path
    digest: str
    python: str
    stub: StubFiles | None
    server_python: str
    release: TritonRelease
    in_container: bool
    places: Mapping[Path, Path] = field(default_factory=dict)
    backends: frozenset[str] | None = None


def check_site(resolved: Resolved, runtime: Runtime, say: Say) -> None:
    """Check a site's models before anything is started; fetch the stubs they need.

    Raises:
        ModelError: Naming the first model that would not be served correctly, and why.
    """
    for model in resolved.site:
        with of_model(model.name):
            _check(resolved, model, runtime, say)


def _check(resolved: Resolved, model: SiteModel, runtime: Runtime, say: Say) -> None:
    release, served = runtime.release, resolved.models
    backend = model.config.backend or model.config.platform
    if runtime.backends is not None and backend not in {*runtime.backends, ENSEMBLE}:
        has = f"this Triton has {', '.join(sorted(runtime.backends))}"
        remedy = "--env packed --image with NVIDIA's image, which has it"
        raise RepositoryError(f"model {model.name} needs backend {backend}; {has}", remedy)
    for part in called_by(model.config):
        if part not in served:
            needs = "is an ensemble of" if model.config.ensemble_scheduling.step else "calls"
            why = resolved.broken[part].cause if part in resolved.broken else None
            cause = f"model {model.name} {needs} {part}, which is not served"
            if why is not None:
                raise RepositoryError(f"{cause}: {why}")
            raise RepositoryError(cause, f"--models {','.join((*served, part))}")
    golden = model.files.get(f"{model.versions[-1]}/{GOLDEN_FILE}")
    if golden is not None:
        read_golden(golden)
    for name in skipped_warmups(model.config):
        say(f"warning: model {model.name}: Triton skips warm-up {name!r}: batch_size is 0")
    if not uses_stubs(model.config):
        return
    code = model.config.default_model_filename or CODE
    for version in model.versions:
        if f"{version}/{code}" not in model.files:
            cause = f"version {version} has no {code}"
            raise RepositoryError(cause, f"write {version}/{code}, or remove that version")
    given = resolved.environment_of(model)
    if given is not None:
        check_usable(given, numpy_below=release.numpy_below, in_container=runtime.in_container)
        if not (given.packed or runtime.in_container):
            require_plain(given.path, "move the environment to a folder with a plain name")
        if given.scripts and release.has(NO_ACTIVATE):
            scripts = f"{given.path}/etc/conda/activate.d"
            say(f"warning: model {model.name}: Triton {release.release} does not run {scripts}")
    python = runtime.python if given is None else given.python
    if python is None:
        say(f"warning: model {model.name}: cannot tell which Python {model.environment} has")
    elif model.stub is not None:
        built_for = python_of_stub(model.stub)
        if built_for != python:
            what = "the kit's environment, in which it runs," if given is None else given.path
            remedy = f"a stub for Python {python}, or none: the kit has its own stubs"
            cause = f"its stub is built for Python {built_for}; {what} has Python {python}"
            raise EnvironmentSetupError(cause, remedy)
        _check_release(model.stub, release, python, say)
    elif given is not None and python != runtime.server_python:
        ensure_distribution(release, python, say)


def _check_release(program: Path, release: TritonRelease, python: str, say: Say) -> None:
    """Check that a stub beside a model is of the server's release; another would crash it."""
    if release.wheel is None and release.root is None:
        return  # the image's own Triton, of which nothing is on this host
    own = release.own_python or python
    if texts_in(program) != texts_in(ensure_distribution(release, own, say).stub):
        cause = f"its stub {program} is not of Triton {release.release}"
        remedy = f"build it from python_backend's branch r{release.release}, or remove it"
        raise EnvironmentSetupError(f"{cause}, and would crash the server", remedy)


def stage_site_model(resolved: Resolved, model: SiteModel, runtime: Runtime) -> StagedModel:
    """Return a site's model as it is served: its files are copied.

    Its configuration has its environment's path as the server sees it.
    """
    config, stub = deepcopy(model.config), None
    if uses_stubs(config):
        given, place, stub = resolved.environment_of(model), runtime.environment, runtime.stub
        if given is not None:
            place = runtime.places.get(given.path, given.path)
            stub = _stub(model, given, runtime)
        config.parameters[ENVIRONMENT_PARAMETER].string_value = str(place)
    return StagedModel(
        name=model.name,
        config=config,
        versions=tuple(map(str, model.versions)),
        copies=model.files,
        stub=stub,
    )


def _stub(model: SiteModel, given: GivenEnvironment, runtime: Runtime) -> StubFiles | None:
    """Return the stub for a model with an environment of its own; None: the server's own fits."""
    if model.stub is not None:
        # A copy: a server may change the permissions of what is there.
        return StubFiles(model.stub, (given.libpython,) if given.libpython is not None else ())
    if given.python is None or given.python == runtime.server_python:
        return None
    return stub_of_wheel(
        TritonDistribution.in_cache(runtime.release, given.python), given.libpython
    )
