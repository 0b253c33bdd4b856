"""The C++ client and real servers: values, balancing, death and return."""

import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import h5py
import pytest

from tests.inputs import EVENTS
from tests.kit import until

MODELS = ("--models", "nugraph2_cpu,nugraph3", "--instances", "1")
REQUESTS = 1000


@pytest.fixture(scope="module")
def servers(kit):
    yield {name: kit.up(name, *MODELS) for name in ("one", "two")}
    for name in ("one", "two"):
        kit.end(name)


def _url(answer: dict[str, Any]) -> str:
    return f"grpc://127.0.0.1:{answer['ports']['grpc']}"


@pytest.mark.parametrize("model", ["nugraph2_cpu", "nugraph3"])
def test_answers_are_those_of_the_python_client_bit_by_bit(kit, servers, label, tmp_path, model):
    url = _url(servers["one"])
    flags = ("--url", url, "--model", model, "--out", str(tmp_path / "python.h5"))
    done = kit.run("infer", str(EVENTS), *flags, script=True)
    assert done.returncode == 0, done.stderr
    done = label("--url", url, "--model", model, "--out", tmp_path / "cpp.h5", EVENTS)
    assert done.returncode == 0, done.stderr
    with h5py.File(tmp_path / "cpp.h5") as ours, h5py.File(tmp_path / "python.h5") as theirs:
        assert len(ours["hit_table/x_semantic"]) == 3418
        for table in ("hit_table", "event_table"):
            extra = {"event_label", "latency", "source_file", "semantic_score", "event_id.seq_cnt"}
            assert set(ours[table]) == set(theirs[table]) - extra
            for name, column in ours[table].items():
                assert column.dtype == theirs[table][name].dtype
                assert column[...].tobytes() == theirs[table][name][...].tobytes(), name
    assert list(tmp_path.glob("*.part")) == []


def test_a_bad_event_is_refused_and_the_others_are_answered(servers, label, tmp_path):
    spoilt = tmp_path / "spoilt.h5"
    shutil.copy(EVENTS, spoilt)
    with h5py.File(spoilt, "r+") as file:
        file["hit_table/integral"][3] = 5e6
    done = label("--url", _url(servers["one"]), "--out", tmp_path / "out.h5", spoilt)
    assert done.returncode == 1
    assert "integral" in done.stderr
    assert "row 3" in done.stderr
    with h5py.File(tmp_path / "out.h5") as got:
        assert len(got["event_table/event_id"]) == 4


def test_a_server_that_is_killed_under_balancing_clients_costs_no_request(
    kit, servers, program, tmp_path
):
    small = tmp_path / "small.h5"
    _first_event(small)
    urls = [word for answer in servers.values() for word in ("--url", _url(answer))]
    words = [program, *urls, "--json", "--in-flight", "4", "--repeat", f"{REQUESTS}", small]
    client = subprocess.Popen([str(w) for w in words], stdout=subprocess.PIPE, text=True)
    # In the middle of the run: each server has answered by then, and most is still to come.
    time.sleep(1.5)
    assert client.poll() is None
    os.kill(kit.noted("one")["server"]["pid"], signal.SIGKILL)
    text, _ = client.communicate(timeout=300)
    told = json.loads(text)
    assert (told["ok"], told["events"], told["failed"]) == (True, REQUESTS, 0)
    assert told["retries"] > 0
    until(lambda: kit.json("status", "--name", "one")["ok"], "the server's return")


def _first_event(path: Path) -> None:
    with h5py.File(EVENTS) as whole, h5py.File(path, "w") as part:
        for table in ("hit_table", "spacepoint_table", "event_table"):
            first = whole[f"{table}/event_id"][0]
            mine = (whole[f"{table}/event_id"][...] == first).all(axis=1)
            for name, column in whole[table].items():
                if len(column) == len(mine) and not name.startswith("event_id.seq"):
                    part[f"{table}/{name}"] = column[...][mine]
