"""A folder that names servers, with all that may lie in it: read by the Python and C++ clients."""

import os
import time
from pathlib import Path

SERVERS = (
    "grpc://node07:8001",
    "grpcs://gpu-1.example.org:443",
    "grpc://[fd00::1]:65535",
    "grpc://escaped:1",
    "grpc://little:1",
    "grpc://more:1",
    "grpc://slow.clock:1",
    "grpc://touched_lately:1",
)
"""What it names, in the order of the files."""

_FILES = {
    "0.json": '{"url": "grpc://node07:8001", "replaces": ""}\n',
    "1 tls.json": '{"url": "grpcs://gpu-1.example.org:443", "replaces": "0"}\n',
    "2 ipv6.json": '{"url": "grpc://[fd00::1]:65535", "replaces": ""}',
    "3 again.json": '{"url": "grpc://node07:8001", "replaces": ""}\n',
    "4 escaped.json": r'{"\u0075rl": "grpc:\/\/escaped:1"}',
    "5 little.json": '{"url": "grpc://little:1"}',
    "6 more.json": '{"url": "grpc://more:1", "replaces": null, "cores": [8, {"gpus": 1}]}',
    "7 clock.json": '{"url": "grpc://slow.clock:1", "replaces": ""}',
    "8 touched.json": '{"url": "grpc://touched_lately:1", "replaces": ""}',
    # Not there, or no entries.
    "dead.json": '{"url": "grpc://dead:1", "replaces": ""}',
    "half.json": '{"url": "grpc://half:1", "repl',
    "unclosed.json": '{"url": "grpc://unclosed:1", "replaces": ""',
    "two.json": '{"url": "grpc://two:1"} {"url": "grpc://two:2"}',
    "empty.json": "",
    "blank.json": " \n",
    "list.json": '[{"url": "grpc://list:1"}]',
    "string.json": '"grpc://string:1"',
    "null.json": "null",
    "nested.json": "[" * 1000,
    "deep.json": '{"url": "grpc://deep:1", "x": ' + "[" * 990 + "}",
    "no-url.json": '{"replaces": ""}',
    "number.json": '{"url": 8001, "replaces": ""}',
    "urls.json": '{"url": ["grpc://urls:1"], "replaces": ""}',
    "long.json": '{"url": "grpc://long:1", "replaces": "' + "x" * 1024 + '"}',
    "latin1.json": '{"url": "grpc://latin1:1", "replaces": "\udcff"}',
    "http.json": '{"url": "http://web:8000"}',
    "unix.json": '{"url": "unix:///run/x"}',
    "dns.json": '{"url": "grpc://dns:///name:1"}',
    "scheme.json": '{"url": "node07:8001"}',
    "portless.json": '{"url": "grpc://portless"}',
    "port0.json": '{"url": "grpc://port0:0"}',
    "port65536.json": '{"url": "grpc://port65536:65536"}',
    "digits.json": '{"url": "grpc://digits:\u0661"}',
    "port6.json": '{"url": "grpc://port6:000080"}',
    "plus.json": '{"url": "grpc://plus:+80"}',
    "no-port.json": '{"url": "grpc://no-port:"}',
    "bracket.json": '{"url": "grpc://[fd00::1:1"}',
    "brackets.json": '{"url": "grpc://[]:1"}',
    "space.json": '{"url": "grpc://spa ce:1"}',
    "capitals.json": '{"url": "GRPC://capitals:1"}',
    "hostless.json": '{"url": "grpc://:8001"}',
    "user.json": '{"url": "grpc://me@user:1"}',
    "path.json": '{"url": "grpc://path:1/x"}',
    "line.json": '{"url": "grpc://line:1\\n"}',
    "zero.json": '{"url": "grpc://zero:1\\u0000"}',
    "entry.json.part": '{"url": "grpc://part:1"}',
    "README": "{}",
}
_AGES_S = {"7 clock.json": -600, "8 touched.json": 120, "dead.json": 240}


def make(folder: Path) -> None:
    """Make the folder."""
    folder.mkdir()
    for name, text in _FILES.items():
        path = folder / name
        path.write_text(text, errors="surrogateescape")
        touched = time.time() - _AGES_S.get(name, 0)
        os.utime(path, (touched, touched))
    (folder / "folder.json").mkdir()
    (folder / "nowhere.json").symlink_to("nowhere")
    os.mkfifo(folder / "fifo.json")
