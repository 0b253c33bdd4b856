"""A Triton that is started by hand, without the kit's commands."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from deploy.triton.command import server_arguments, server_environment
from deploy.triton.distribution import TritonDistribution
from tests.kit import free_ports

_END_S = 60


@contextmanager
def triton(
    distribution: TritonDistribution,
    repository: Path | str,
    log: Path,
    *,
    http: int | None = None,
    libpython: Path | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Run it until the block ends; yield its URL.

    Args:
        repository: A folder, or a bucket's URL.
        log: What it says is added to this file.
        http: Its port; None: any free one.
        variables: Further ones of its environment.
    """
    ports = free_ports()
    if http is not None:
        ports = ports.model_copy(update={"http": http})
    prefix = f"numlkit-test-{ports.http}-"
    command = server_arguments(
        distribution=distribution, repository=Path("REPOSITORY"), listen="127.0.0.1", ports=ports,
        shm_prefix=prefix, identity="by-hand",
    )  # fmt: skip
    # As a path a URL would lose one of its two slashes.
    words = [word.replace("REPOSITORY", str(repository)) for word in command]
    environment = server_environment(
        distribution=distribution, libpython=libpython, threads=1, inherited=os.environ, devices={}
    )
    with log.open("ab") as out:
        process = subprocess.Popen(words, env=environment | variables, stdout=out, stderr=out)
    try:
        yield f"http://127.0.0.1:{ports.http}"
    finally:
        process.terminate()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            for region in Path("/dev/shm").glob(f"{prefix}*"):
                region.unlink()
            if isinstance(repository, Path):  # one that polls S3 was seen once that did not end
                raise
