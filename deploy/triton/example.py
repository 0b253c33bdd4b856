"""Start a model of one's own from one of the gallery: a renamed copy, with the models it calls."""

import re
import shutil
from contextlib import ExitStack
from pathlib import Path

from deploy.deployment.deployment import check_model_name, find_site_models
from deploy.host.errors import DeploymentError
from deploy.host.files import new_folder, refuse_existing
from deploy.triton.site import with_callees
from numl_formats.repository import CONFIG


def copy_example(gallery: Path, entry: str, repository: Path, name: str) -> tuple[Path, ...]:
    """Copy a model of ``gallery`` as ``name``, and what it calls as ``name_...``; return them.

    Raises:
        DeploymentError: There is no such entry, or ``name`` is not a model's.
        RepositoryError: A folder of such a name is there already, or being made.
    """
    if entry not in (there := find_site_models(gallery)):
        cause = f"the gallery has no {entry!r}"
        raise DeploymentError(cause, f"--like with one of: {', '.join(there)}")
    check_model_name(name)
    names = {entry: name}
    for called in with_callees(gallery, [entry])[1:]:
        names[called] = f"{name}_{called.removeprefix(f'{entry}_')}"
    targets = {each: repository / new for each, new in names.items()}
    for target in targets.values():
        refuse_existing(target)
    # All of them or none.
    with ExitStack() as stack:
        for each, target in targets.items():
            _copy(gallery / each, stack.enter_context(new_folder(target)), names)
    return tuple(targets.values())


def _copy(source: Path, target: Path, names: dict[str, str]) -> None:
    """Copy a model, links followed; where it names models in quotes, the copies are meant."""
    shutil.copytree(
        source, target, ignore=shutil.ignore_patterns("__pycache__"), dirs_exist_ok=True
    )
    words = re.compile(rf"\b(?:{'|'.join(map(re.escape, names))})\b")

    def renamed(quoted: re.Match[str]) -> str:
        return words.sub(lambda found: names[found[0]], quoted[0])

    for path in (target / CONFIG, *target.glob("*/model.py")):
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        # An environment may be called as a model is.
        text = "".join(
            line if "NUMLKIT_ENV" in line else re.sub(r'"[^"\n]*"', renamed, line) for line in lines
        )
        path.write_text(text, encoding="utf-8")
