"""The tritonserver command line: pure rendering of a plan."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.deployment import Ports, Tls
from deploy.errors import DeploymentError
from deploy.server import keyed_start
from deploy.server.distribution import TritonDistribution
from deploy.server.keyed_start import PLACEHOLDER

# A stop waits this long for connections that clients keep open without using them;
# requests that run get the same time to finish. What the server then leaves behind is
# swept by the supervisor.
EXIT_TIMEOUT_S = 5
# What only the owner of the deployment may use, by its key.
RESTRICTED_APIS = "model-repository,shared-memory,trace,logging"
# Where a server listens in a container with a network of its own.
CONTAINER_LISTEN = "0.0.0.0"
CONTAINER_PORTS = {"http": 8000, "grpc": 8001, "metrics": 8002}
# Where the launcher in a Docker container puts the key that it makes: in memory, and gone with it.
CONTAINER_KEY = Path("/tmp/admin.key")
# Where NVIDIA's image, and the kit's, have Triton.
TRITON_ROOT = Path("/opt/tritonserver")
# Starts the server with its key; a container is given this same file.
LAUNCHER = Path(keyed_start.__file__)
# Starts it where there may be no Python for that.
TOLERANT_LAUNCHER = LAUNCHER.with_name("with_or_without_key.sh")
_PLAIN = re.compile(r"[\w./+@%:,=~-]+", re.ASCII)


def server_arguments(
    *,
    distribution: TritonDistribution,
    repository: Path,
    listen: str,
    ports: Ports,
    shm_prefix: str,
    identity: str,
    http_listen: str | None = None,
    tls: Tls | None = None,
    complete: bool = True,
) -> tuple[str, ...]:
    """Return the command line of a server, as it is in its container if it has one.

    It holds a placeholder for the key to the admin endpoints: see :func:`keyed_command`.
    Model control is ``explicit``: a model is loaded anew when the holder of the key asks.
    ``--exit-on-error=false`` keeps the good models up beside a broken one; readiness
    reports the broken one by name.

    Args:
        distribution: The Triton to start.
        repository: The staged model repository.
        listen: Address to listen on.
        ports: HTTP, gRPC and metrics ports.
        shm_prefix: Start of the names of the shared memory regions it makes.
        identity: What the server answers when asked for its name: another server that took
            its port is told apart by it.
        http_listen: Address for HTTP and metrics, where that is another one.
        tls: How gRPC is encrypted, with the paths as the server sees them.
        complete: Whether the models' configurations say everything; if not, the server asks
            the models, which starts each one twice.
    """
    return (
        str(distribution.executable),
        f"--id={identity}",
        f"--model-repository={repository}",
        f"--backend-directory={distribution.backends}",
        f"--cache-directory={distribution.root / 'caches'}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--exit-on-error=false",
        *(["--disable-auto-complete-config"] if complete else []),
        f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
        f"--http-address={http_listen or listen}",
        f"--http-port={ports.http}",
        f"--grpc-address={listen}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={http_listen or listen}",
        f"--metrics-port={ports.metrics}",
        "--metrics-config=summary_latencies=true",
        "--reuse-http-port=false",
        "--reuse-grpc-port=false",
        f"--http-restricted-api={RESTRICTED_APIS}:{PLACEHOLDER}",
        f"--grpc-restricted-protocol={RESTRICTED_APIS}:{PLACEHOLDER}",
        *_tls_arguments(tls),
    )


def _tls_arguments(tls: Tls | None) -> tuple[str, ...]:
    if tls is None:
        return ()
    pair = ("--grpc-use-ssl=true", f"--grpc-server-cert={tls.cert}", f"--grpc-server-key={tls.key}")
    if tls.ca is None:
        return pair
    return (*pair, "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={tls.ca}")


def keyed_command(
    arguments: Sequence[str], *, python: Path, launcher: Path, key_file: Path, new: bool = False
) -> tuple[str, ...]:
    """Return the command line that starts a server with its key, unseen by other users.

    Args:
        arguments: The server's command line, with the placeholder for the key.
        python: A Python, 3.8 or later.
        launcher: ``keyed_start.py``, where that Python finds it.
        key_file: The file that holds the key.
        new: Whether the launcher makes the key and the file.
    """
    option = "--new-key-file" if new else "--key-file"
    return (str(python), "-IS", str(launcher), option, str(key_file), "--", *arguments)


def server_environment(
    *,
    distribution: TritonDistribution,
    threads: int,
    inherited: Mapping[str, str],
    devices: Mapping[str, str],
) -> dict[str, str]:
    """Return the environment variables of a container-free server.

    Only what a server needs is passed on: what a user has set for other programs is not
    to change what the stubs run. The server itself adds the execution environment's
    ``lib``, with libpython, to the library path of its stubs.

    Args:
        distribution: The Triton to start.
        threads: Threads of each instance's numerical libraries.
        inherited: The caller's environment.
        devices: Which GPUs the server sees.
    """
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
    variables = {name: inherited[name] for name in kept if name in inherited}
    variables["LD_LIBRARY_PATH"] = str(distribution.libraries)
    return {**variables, **thread_settings(threads), **devices}


def thread_settings(threads: int) -> dict[str, str]:
    """Return the environment variables that keep numerical libraries to ``threads`` threads."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def require_plain(path: Path, remedy: str) -> None:
    """Refuse what Triton's Python backend would break at: it puts paths into a shell command.

    Raises:
        DeploymentError: With ``remedy``.
    """
    if not _PLAIN.fullmatch(str(path)):
        raise DeploymentError(
            f"{path}: Triton's Python backend cannot use a path with blanks or special characters",
            remedy,
        )
