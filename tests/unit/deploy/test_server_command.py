import subprocess
from pathlib import Path

import pytest

from deploy.deployment import Ports, Tls
from deploy.server.command import (
    TOLERANT_LAUNCHER,
    keyed_command,
    server_arguments,
    server_environment,
)
from deploy.server.distribution import TritonDistribution

TRITON = TritonDistribution(root=Path("/cache/triton"), stub_python="3.11")


def test_the_whole_command_line() -> None:
    arguments = server_arguments(
        distribution=TRITON,
        repository=Path("/state/a b/model_repository"),
        listen="127.0.0.1",
        ports=Ports(),
        shm_prefix="numlkit-0-numl-",
        identity="numlkit-numl-0123",
    )
    assert arguments == (
        "/cache/triton/bin/tritonserver",
        "--id=numlkit-numl-0123",
        "--model-repository=/state/a b/model_repository",
        "--backend-directory=/cache/triton/backends",
        "--cache-directory=/cache/triton/caches",
        "--backend-config=python,shm-region-prefix-name=numlkit-0-numl-",
        "--model-control-mode=explicit",
        "--load-model=*",
        "--exit-on-error=false",
        "--disable-auto-complete-config",
        "--exit-timeout-secs=5",
        "--http-address=127.0.0.1",
        "--http-port=8000",
        "--grpc-address=127.0.0.1",
        "--grpc-port=8001",
        "--metrics-address=127.0.0.1",
        "--metrics-port=8002",
        "--metrics-config=summary_latencies=true",
        "--reuse-http-port=false",
        "--reuse-grpc-port=false",
        "--http-restricted-api=model-repository,shared-memory,trace,logging:"
        "numlkit:key=PUT-IN-AT-START",
        "--grpc-restricted-protocol=model-repository,shared-memory,trace,logging:"
        "numlkit:key=PUT-IN-AT-START",
    )


def test_the_command_line_that_hides_the_key() -> None:
    command = keyed_command(
        (
            "/cache/triton/bin/tritonserver",
            "--http-restricted-api=trace:numlkit:key=PUT-IN-AT-START",
        ),
        python=Path("/opt/numl/env/bin/python"),
        launcher=Path("/a b/keyed_start.py"),
        key_file=Path("/state/numl/admin.key"),
    )
    assert command == (
        "/opt/numl/env/bin/python",
        "-IS",
        "/a b/keyed_start.py",
        "--key-file",
        "/state/numl/admin.key",
        "--",
        "/cache/triton/bin/tritonserver",
        "--http-restricted-api=trace:numlkit:key=PUT-IN-AT-START",
    )


def test_the_command_line_that_makes_and_hides_the_key() -> None:
    command = keyed_command(
        ("/bin/server",), python=Path("/p"), launcher=Path("/k.py"), key_file=Path("/f"), new=True
    )
    assert command == ("/p", "-IS", "/k.py", "--new-key-file", "/f", "--", "/bin/server")


@pytest.mark.parametrize(
    ("python", "said", "told"),
    [
        ("/bin/echo", "-IS /a b/k.py --key-file /key -- /bin/echo it's --x=$1\n", ""),
        (
            "/no/python3",
            "it's --x=$1\n",
            "the admin endpoints are closed to everybody: this image has no /no/python3\n",
        ),
    ],
)
def test_an_image_without_python_gets_its_server_with_the_placeholder(
    python: str, said: str, told: str
) -> None:
    command = keyed_command(
        ("/bin/echo", "it's", "--x=$1"),
        python=Path(python),
        launcher=Path("/a b/k.py"),
        key_file=Path("/key"),
    )
    done = subprocess.run(
        ["/bin/sh", TOLERANT_LAUNCHER, *command], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (said, told)


def test_tls_is_for_grpc_and_the_rest_stays_on_the_loopback() -> None:
    def arguments(tls: Tls) -> list[str]:
        found = server_arguments(
            distribution=TRITON,
            repository=Path("/models"),
            listen="0.0.0.0",
            ports=Ports(),
            shm_prefix="p",
            identity="i",
            http_listen="127.0.0.1",
            tls=tls,
        )
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
    assert arguments(Tls(cert=cert, key=key)) == one_sided
    assert arguments(Tls(cert=cert, key=key, ca=ca)) == [
        *one_sided,
        "--grpc-use-ssl-mutual=true",
        "--grpc-root-cert=/tls/ca.pem",
    ]


def test_a_user_s_python_settings_do_not_reach_the_stubs() -> None:
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
