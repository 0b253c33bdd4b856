"""The site files: each can be planned.

Those of Apptainer want its image: tests/conformance/test_documentation.py plans them with one.
"""

import re
import shutil
from pathlib import Path

import pytest

from deploy.commands.up import main
from deploy.deployment.deployment import Deployment
from deploy.host.gpu import Gpu, GpuStack, Memory
from deploy.host.paths import CHECKOUT
from tests.certificates import Authority
from tests.kit import free_ports

FULL = CHECKOUT / "deploy/sites/cpu-node.toml"
GIB = 1 << 30
A_GPU = Gpu(0, "GPU-0d5ba0d6-d33d", "NVIDIA A100-SXM4-40GB", (8, 0), Memory(40 * GIB, 39 * GIB))


def planned(file: Path, capsys: pytest.CaptureFixture[str], *flags: str) -> str:
    ports = ",".join(map(str, free_ports().model_dump().values()))  # a file's may be taken here
    status = main([str(file), *flags, "--ports", ports, "--dry-run"])
    shown = capsys.readouterr()
    assert status == 0, shown.err
    return shown.out


def test_one_file_names_every_key():
    named = set(re.findall(r"^(?:# )?\[?(\w+)(?: =|])", FULL.read_text(), re.M))
    untold = {"triton", "heal"}  # the one release there is; for tests and hosts with other watchers
    assert set(Deployment.model_fields) - untold - named == set()


@pytest.mark.parametrize("name", ["cpu-node", "laptop"])
def test_a_server_without_a_container_can_be_planned(name, capsys):
    shown = planned(CHECKOUT / f"deploy/sites/{name}.toml", capsys, "--engine", "local")
    assert "tritonserver" in shown


def test_a_server_with_gpus_and_tls_can_be_planned(tmp_path, monkeypatch, capsys):
    """There is no GPU here: what a driver would say is made up."""
    stack = GpuStack("580.65.06", (A_GPU,))
    monkeypatch.setattr("deploy.engines.resolved.find_gpus", lambda: stack)
    site = Path(shutil.copy(CHECKOUT / "deploy/sites/eaf.toml", tmp_path))
    pair = Authority(tmp_path, "site").issue("triton.example.org")
    (tmp_path / "tls").mkdir()
    pair.cert.rename(tmp_path / "tls/server.pem")
    pair.key.rename(tmp_path / "tls/server.key")
    shown = planned(site, capsys, "--engine", "local")
    assert "# 1 x nugraph2, 1 x nugraph3" in shown
    assert f"CUDA_VISIBLE_DEVICES={A_GPU.uuid}" in shown
    assert "--grpc-address=0.0.0.0" in shown
    assert "--http-address=127.0.0.1" in shown
    assert f"--grpc-server-cert={tmp_path}/tls/server.pem" in shown
