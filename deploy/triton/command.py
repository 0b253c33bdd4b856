"""The tritonserver command line: pure rendering of a plan."""

import re
from collections.abc import Mapping
from pathlib import Path

from deploy.deployment.deployment import Ports, Tls
from deploy.host.errors import DeploymentError
from deploy.triton.distribution import TritonDistribution
from deploy.triton.response_cache import CACHE_BYTES

# A stop waits this long for connections that clients keep open without using them;
# requests that run get the same time to finish. What the server then leaves behind is
# swept by the supervisor.
EXIT_TIMEOUT_S = 5
# Flags of every server, also of one that an image's own entry point (containers/serve) starts.
# The server looks for changed files every second, which is how the supervisor has it reload a
# model. --exit-on-error=false keeps good models up when another is broken; readiness names that.
COMMON_FLAGS = (
    "--model-control-mode=poll",
    "--repository-poll-secs=1",
    "--exit-on-error=false",
    f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
    "--metrics-config=summary_latencies=true",
    "--reuse-http-port=false",
    "--reuse-grpc-port=false",
)
_COMPLETE = ("--disable-auto-complete-config",)
_CACHE = (f"--cache-config=local,size={CACHE_BYTES}",)
# From 26.04 on; older servers do not know it, and allow it.
_CLIENT_SHM = "allow-client-shm"
_ADMIN_APIS = ("model-repository", "trace", "logging", "shared-memory")
# No client can send this header: HTTP ends a name at the colon, and gRPC accepts no such name.
_NOBODYS_HEADER = "nobody:sends=this"
# Where a server listens in a container with a network of its own.
CONTAINER_LISTEN = "0.0.0.0"
CONTAINER_PORTS = Ports()
# Where NVIDIA's image, and the kit's, have Triton.
TRITON_ROOT = Path("/opt/tritonserver")
# The kit's image says by this whether every model gives its reference output.
IMAGE_HEALTH = ("/opt/numl/bin/health",)
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
    shared_memory: bool = False,
    repository_index: bool = False,
    cache: bool = False,
    flags: frozenset[str] = frozenset(),
) -> tuple[str, ...]:
    """Return the command line of a server, as seen inside its container if it has one.

    Args:
        shm_prefix: Start of the names of the shared memory regions it makes.
        identity: The name it answers with, which tells it from a server that took its port.
        http_listen: Address for HTTP and metrics; None: the same as for gRPC.
        tls: How gRPC is encrypted, with the paths as the server sees them.
        complete: Whether every configuration is complete; if not, the server asks the models,
            which starts each one twice.
        shared_memory: Whether clients may register shared memory.
        repository_index: Whether clients may list the models.
        cache: Whether a model uses Triton's response cache.
        flags: Those that the server is known to understand.
    """
    # Triton hands an address to libevhtp, or puts a colon and the port behind it for gRPC.
    grpc_address = f"[{listen}]" if ":" in listen else listen
    http_listen = http_listen or listen
    http_address = f"ipv6:{http_listen}" if ":" in http_listen else http_listen
    return (
        str(distribution.executable),
        f"--id={identity}",
        f"--model-repository={repository}",
        f"--backend-directory={distribution.backends}",
        f"--cache-directory={distribution.root / 'caches'}",
        f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
        f"--http-address={http_address}",
        f"--http-port={ports.http}",
        f"--grpc-address={grpc_address}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-address={http_address}",
        f"--metrics-port={ports.metrics}",
        *(_COMPLETE if complete else ()),
        *(_CACHE if cache else ()),
        *COMMON_FLAGS,
        *closed_endpoints(shared_memory=shared_memory, repository_index=repository_index),
        *((f"--{_CLIENT_SHM}=true",) if shared_memory and _CLIENT_SHM in flags else ()),
        *_tls_arguments(tls),
    )


def image_flags(*, cache: bool = False) -> tuple[str, ...]:
    """Return the flags of every server started by an image's own entry point."""
    return (*_COMPLETE, *(_CACHE if cache else ()), *COMMON_FLAGS, *closed_endpoints())


def closed_endpoints(
    *, shared_memory: bool = False, repository_index: bool = False
) -> tuple[str, str]:
    """Return the flags that close the admin endpoints, but for those that are asked for.

    The switch of the repository's index is that of loading models, too, but a server that polls
    its repository loads none that a client asks for.
    """
    opened = {"model-repository": repository_index, "shared-memory": shared_memory}
    apis = ",".join(api for api in _ADMIN_APIS if not opened.get(api))
    return (
        f"--http-restricted-api={apis}:{_NOBODYS_HEADER}",
        f"--grpc-restricted-protocol={apis}:{_NOBODYS_HEADER}",
    )


def _tls_arguments(tls: Tls | None) -> tuple[str, ...]:
    if tls is None:
        return ()
    pair = ("--grpc-use-ssl=true", f"--grpc-server-cert={tls.cert}", f"--grpc-server-key={tls.key}")
    if tls.ca is None:
        return pair
    return (*pair, "--grpc-use-ssl-mutual=true", f"--grpc-root-cert={tls.ca}")


def server_environment(
    *,
    distribution: TritonDistribution,
    threads: int,
    inherited: Mapping[str, str],
    devices: Mapping[str, str],
    libpython: Path | None = None,
) -> dict[str, str]:
    """Return the environment variables of a container-free server.

    Only what a server needs is passed on: what a user has set for other programs must not
    change what the stubs run. The server itself adds the execution environment's
    ``lib``, with libpython, to the library path of its stubs. But first it tries whether a stub
    starts: one that then finds no ``libpython``, the server's or the host's, it makes 0100, and
    fails if the file is another user's.
    """
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TZ")
    variables = {name: inherited[name] for name in kept if name in inherited}
    libraries = [distribution.libraries, *([libpython.parent] if libpython is not None else [])]
    variables["LD_LIBRARY_PATH"] = ":".join(map(str, libraries))
    return {**variables, **thread_settings(threads), **devices}


def thread_settings(threads: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(names, str(threads))


def require_plain(path: Path, remedy: str) -> None:
    """Refuse a path that would break Triton's Python backend: it goes into a shell command."""
    if not _PLAIN.fullmatch(str(path)):
        raise DeploymentError(
            f"{path}: Triton's Python backend cannot use a path with spaces or special characters",
            remedy,
        )
