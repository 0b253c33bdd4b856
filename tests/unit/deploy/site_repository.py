"""Model repositories of a site, and environments that only look like some, for tests."""

import io
import tarfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.programs import write_program

CONFIG = """\
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: -1 }
output { name: "y" data_type: TYPE_FP32 dims: -1 }
instance_group { kind: KIND_CPU count: 2 }
"""
ENVIRONMENT = (
    "bin/activate",
    "bin/python3.10",
    "lib/libpython3.10.so.1.0",
    "lib/python3.10/os.py",
    "lib/python3.10/site-packages/numpy-1.26.4.dist-info/METADATA",
)


def environment_parameter(path: str) -> str:
    return f'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n'


def write_model(
    repository: Path, name: str, *, environment: str | None = None, config: str = CONFIG
) -> Path:
    """Write a model of the Python backend; return the folder of its version."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("class TritonPythonModel: ...\n")
    more = "" if environment is None else environment_parameter(environment)
    (repository / name / "config.pbtxt").write_text(config + more)
    return version


def write_archive(
    path: Path,
    names: Iterable[str] = ENVIRONMENT,
    *,
    kind: str = "gz",
    more: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Write an archive with members of these names, each of which holds its own, and ``more``."""
    with tarfile.open(path, f"w:{kind}") as tar:
        for name, held in {**{name: name for name in names}, **(more or {})}.items():
            content = held.encode() if isinstance(held, str) else held
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def write_environment(folder: Path, answer: str = "", status: int = 0) -> Path:
    """Write an environment whose Python prints an answer, with its own prefix for ``%s``."""
    answering = f"echo run >>'{folder}/runs'\nprintf '{answer}' '{folder}'\nexit {status}"
    write_program(folder / "bin" / "python", answering)
    (folder / "bin" / "activate").write_text(f'PATH="{folder}/bin:$PATH"\n')
    return folder
