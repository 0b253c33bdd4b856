from pathlib import Path
from typing import Any

import pytest

from deploy.deployment.deployment import Ports, Tls
from deploy.triton.command import (
    closed_endpoints,
    image_flags,
    server_arguments,
    server_environment,
)
from deploy.triton.distribution import TritonDistribution

TRITON = TritonDistribution(root=Path("/cache/triton"), stub_python="3.11")


def arguments(**changed: Any) -> tuple[str, ...]:
    """Return what a server is started with that is otherwise as the kit starts it."""
    usual = {
        "distribution": TRITON,
        "repository": Path("/state/a b/model_repository"),
        "listen": "127.0.0.1",
        "ports": Ports(),
        "shm_prefix": "numlkit-0-numl-",
        "identity": "numlkit-numl-0123",
    }
    return server_arguments(**(usual | changed))


def test_the_whole_command_line():
    assert arguments() == (
        "/cache/triton/bin/tritonserver",
        "--id=numlkit-numl-0123",
        "--model-repository=/state/a b/model_repository",
        "--backend-directory=/cache/triton/backends",
        "--cache-directory=/cache/triton/caches",
        "--backend-config=python,shm-region-prefix-name=numlkit-0-numl-",
        "--http-address=127.0.0.1",
        "--http-port=8000",
        "--grpc-address=127.0.0.1",
        "--grpc-port=8001",
        "--metrics-address=127.0.0.1",
        "--metrics-port=8002",
        "--disable-auto-complete-config",
        "--model-control-mode=poll",
        "--repository-poll-secs=1",
        "--exit-on-error=false",
        "--exit-timeout-secs=5",
        "--metrics-config=summary_latencies=true",
        "--reuse-http-port=false",
        "--reuse-grpc-port=false",
        "--http-restricted-api=model-repository,trace,logging,shared-memory:nobody:sends=this",
        "--grpc-restricted-protocol=model-repository,trace,logging,shared-memory:nobody:sends=this",
    )


@pytest.mark.parametrize(
    ("listen", "http_listen", "http", "grpc"),
    [
        ("::1", None, "ipv6:::1", "[::1]"),
        ("::", "127.0.0.1", "127.0.0.1", "[::]"),
        ("10.0.0.5", "fd00::5", "ipv6:fd00::5", "10.0.0.5"),
    ],
)
def test_an_ipv6_address_is_written_as_each_of_tritons_servers_takes_it(
    listen, http_listen, http, grpc
):
    found = arguments(listen=listen, http_listen=http_listen)
    assert [argument for argument in found if "-address=" in argument] == [
        f"--http-address={http}",
        f"--grpc-address={grpc}",
        f"--metrics-address={http}",
    ]


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ("shared_memory", "model-repository,trace,logging"),
        ("repository_index", "trace,logging,shared-memory"),
    ],
)
def test_one_api_is_opened_by_itself(opened, closed):
    assert closed_endpoints(**{opened: True}) == (
        f"--http-restricted-api={closed}:nobody:sends=this",
        f"--grpc-restricted-protocol={closed}:nobody:sends=this",
    )


@pytest.mark.parametrize(
    ("shared_memory", "flags", "allowed"),
    [
        (True, {"allow-client-shm"}, True),
        (True, set(), False),
        (False, {"allow-client-shm"}, False),
    ],
)
def test_a_server_that_must_be_told_to_allow_clients_shared_memory_is_told(
    shared_memory, flags, allowed
):
    found = arguments(shared_memory=shared_memory, flags=frozenset(flags))
    assert ("--allow-client-shm=true" in found) == allowed


@pytest.mark.parametrize("cache", [True, False])
def test_a_server_whose_models_use_the_response_cache_gets_one_of_64_mib(cache):
    assert ("--cache-config=local,size=67108864" in image_flags(cache=cache)) == cache


def test_tls_is_for_grpc_and_the_rest_stays_on_the_loopback():
    def told(tls: Tls) -> list[str]:
        found = arguments(listen="0.0.0.0", http_listen="127.0.0.1", tls=tls)
        return [a for a in found if "address" in a or "ssl" in a or "cert" in a or "key=/" in a]

    cert, key, ca = Path("/tls/a b.pem"), Path("/tls/a.key"), Path("/tls/ca.pem")
    one_sided = [
        "--http-address=127.0.0.1",
        "--grpc-address=0.0.0.0",
        "--metrics-address=127.0.0.1",
        "--grpc-use-ssl=true",
        "--grpc-server-cert=/tls/a b.pem",
        "--grpc-server-key=/tls/a.key",
    ]
    assert told(Tls(cert=cert, key=key)) == one_sided
    assert told(Tls(cert=cert, key=key, ca=ca)) == [
        *one_sided,
        "--grpc-use-ssl-mutual=true",
        "--grpc-root-cert=/tls/ca.pem",
    ]


def test_a_user_s_python_settings_do_not_reach_the_stubs():
    variables = server_environment(
        distribution=TRITON,
        threads=2,
        devices={"CUDA_VISIBLE_DEVICES": ""},
        inherited={"PATH": "/bin", "PYTHONPATH": "/evil", "PYTHONHOME": "/evil", "TOKEN": "secret"},
    )
    assert variables == {
        "PATH": "/bin",
        "LD_LIBRARY_PATH": "/cache/triton/lib",
        "OMP_NUM_THREADS": "2",
        "MKL_NUM_THREADS": "2",
        "OPENBLAS_NUM_THREADS": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
