"""Tensors of every type go to a server and come back, over HTTP."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from numl_formats.inference import AnswerError, TritonHttp, infer

LENGTH = "Inference-Header-Content-Length"


class Echo(BaseHTTPRequestHandler):
    """Answers with the tensors of the request, as it got them."""

    def do_POST(self):
        length = int(self.headers[LENGTH])
        asked = json.loads(self.rfile.read(length))
        data = self.rfile.read(int(self.headers["Content-Length"]) - length)
        head = json.dumps({"outputs": asked["inputs"]}).encode()
        self.send_response(200)
        self.send_header(LENGTH, str(len(head)))
        self.end_headers()
        self.wfile.write(head + data)

    def log_message(self, *_arguments):
        pass


@pytest.fixture(scope="module")
def server():
    with HTTPServer(("127.0.0.1", 0), Echo) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        yield TritonHttp("127.0.0.1", http.server_port, time.monotonic() + 60)
        http.shutdown()


def test_tensors_come_back_as_they_were_sent(server):
    sent = {
        "words": np.array([[b"a\x00b", b""], ["\u00e9", b"long" * 99]], np.object_),
        "fixed": np.array([b"cat", b"ibex"]),
        "flags": np.array([True, False]),
        "small": np.arange(3, dtype=np.uint8),
        "large": np.array([[-(2**40)]], np.int64),
        "half": np.zeros((0, 2), np.float16),
    }
    found = infer(server, "m", "1", sent, sent)
    words = [[b"a\x00b", b""], ["\u00e9".encode(), b"long" * 99]]
    assert found.pop("words").tolist() == words
    assert found.pop("fixed").tolist() == [b"cat", b"ibex"]
    for name, array in found.items():
        assert array.dtype == sent[name].dtype
        np.testing.assert_array_equal(array, sent[name])
    assert found.keys() == sent.keys() - {"words", "fixed"}


@pytest.mark.parametrize("content", [b"ab", b"\x02\0\0\0ab\x01", b"\x03\0\0\0ab"])
def test_a_text_that_is_cut_short_is_an_answer_error(server, content, monkeypatch):
    monkeypatch.setattr("numl_formats.inference._data", lambda array: content)
    with pytest.raises(AnswerError, match="the answer cannot be read: "):
        infer(server, "m", "1", {"words": np.array([b""])}, ["words"])
