"""Clients may register shared memory only where a deployment asks for that."""

import os
from pathlib import Path

import pytest
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

from tests.kit import SMALL

CLIENTS = ((http, "http"), (grpc, "grpc"))


@pytest.fixture
def region():
    path = Path(f"/dev/shm/numlkit-test-{os.getpid()}")
    path.write_bytes(bytes(1024))
    yield path.name
    path.unlink()


def test_what_is_opened_is_open_and_all_else_stays_closed(kit, region, tmp_path):
    (tmp_path / "open.toml").write_text("shared_memory = true\nrepository_index = true\n")
    answer = kit.up("shared", str(tmp_path / "open.toml"), *SMALL)
    for library, protocol in CLIENTS:
        with library.InferenceServerClient(f"127.0.0.1:{answer['ports'][protocol]}") as client:
            client.register_system_shared_memory("r", f"/{region}", 1024)
            assert region in str(client.get_system_shared_memory_status())
            client.unregister_system_shared_memory("r")
            assert "READY" in str(client.get_model_repository_index())
            for change in (client.load_model, client.unload_model):
                with pytest.raises(InferenceServerException, match="not allowed"):
                    change("nugraph3")
            assert client.is_model_ready("nugraph3")
            with pytest.raises(InferenceServerException, match="restricted"):
                client.get_log_settings()
    kit.end("shared")
