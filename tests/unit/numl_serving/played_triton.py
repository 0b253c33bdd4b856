"""A server that is played, since a real one cannot be made to lie, and a repository for it."""

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from small_models import random_event, write_model

from numl_formats.golden import GoldenEvent, write_golden

HITS = 3
GOLDEN = {
    "x_semantic_u": np.arange(15, dtype=np.float32).reshape(HITS, 5),
    "x_filter_u": np.zeros(0, np.float32),
}


@dataclass
class Triton:
    """What the played server answers; a test changes it."""

    ready: dict[str, bool] = field(default_factory=lambda: {"nugraph2": True, "nugraph3": True})
    answer: dict[str, Any] = field(default_factory=lambda: dict(GOLDEN))
    error: str | None = None
    silent: int = 0
    empty: bool = False
    groups: list[dict[str, Any]] = field(default_factory=lambda: [{"count": 2, "gpus": []}])
    versions: list[str] = field(default_factory=lambda: ["1"])
    port: int = 0

    def infer(self, question: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        if self.error is not None:
            return 500, {}, json.dumps({"error": self.error}).encode()
        wanted = [output["name"] for output in question["outputs"]]
        parts = {name: b"" if self.empty else self.answer[name].tobytes() for name in wanted}
        outputs = [
            {
                "name": name,
                "datatype": "FP32",
                "shape": self.answer[name].shape,
                "parameters": {"binary_data_size": len(part)},
            }
            for name, part in parts.items()
        ]
        head = json.dumps({"outputs": outputs}).encode()
        length = {"Inference-Header-Content-Length": str(len(head))}
        return 200, length, b"".join([head, *parts.values()])


@pytest.fixture
def triton():
    played = Triton()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if played.silent:
                played.silent -= 1
                self.close_connection = True
                return
            if self.path.endswith("/config"):
                self.reply(200, {}, json.dumps({"instance_group": played.groups}).encode())
                return
            if self.path.count("/") == 3 and "/models/" in self.path:
                self.reply(200, {}, json.dumps({"versions": played.versions}).encode())
                return
            model = self.path.split("/")[3] if "/models/" in self.path else None
            self.reply(200 if model is None or played.ready[model] else 400, {}, b"")

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            length = int(self.headers["Inference-Header-Content-Length"])
            self.reply(*played.infer(json.loads(body[:length])))

        def reply(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        played.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield played
        server.shutdown()
        thread.join()


@pytest.fixture
def repository(tmp_path):
    event = random_event(0, HITS)
    for model in ("nugraph2", "nugraph3"):
        version = write_model(tmp_path / model / "1")
        (tmp_path / model / "config.pbtxt").touch()
        write_golden(version / "golden.npz", GoldenEvent(event.tensors(), dict(GOLDEN)))
    return tmp_path
