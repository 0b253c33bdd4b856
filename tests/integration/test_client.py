"""scripts/infer.py against a real server."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest

from deploy.host.paths import CHECKOUT
from tests.inputs import EVENTS
from tests.kit import until


def _url(answer, protocol):
    return f"{protocol}://127.0.0.1:{answer['ports'][protocol]}"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["nugraph2", "nugraph3"])
def test_every_hit_gets_a_label(kit, demo, tmp_path, protocol, model):
    out = tmp_path / "results.h5"
    flags = ["--url", _url(demo, protocol), "--model", model, "--out", str(out)]
    done = kit.run("infer", str(EVENTS), *flags, script=True)
    assert done.returncode == 0, done.stderr
    with h5py.File(EVENTS) as sent, h5py.File(out) as got:
        assert (got["event_table/event_id"][:] == sent["event_table/event_id"][:]).all()
        ids = np.c_[sent["hit_table/event_id"][:], sent["hit_table/hit_id"][:]]
        answered = np.c_[got["hit_table/event_id"][:], got["hit_table/hit_id"][:]]
        assert sorted(map(tuple, ids)) == sorted(map(tuple, answered))
        assert np.isfinite(got["hit_table/x_semantic"][:]).all()


def test_files_in_bulk_are_labelled_once_and_merged(kit, demo, tmp_path):
    into, merged = tmp_path / "labels", tmp_path / "all.h5"
    flags = [str(EVENTS), "--into", str(into), "--url", _url(demo, "grpc")]
    first, again = kit.json("infer", *flags), kit.json("infer", *flags)
    assert (first["done"], first["events"], again["skipped"], again["events"]) == (1, 5, 1, 0)
    record = json.loads((into / "demo_events.json").read_text())
    card = CHECKOUT / "model_repository" / "nugraph3" / "1" / "model.json"
    assert record["weights"] == json.loads(card.read_text())["weights"]["sha256"]
    assert kit.json("merge", str(into), str(merged))["events"] == 5
    with h5py.File(EVENTS) as sent, h5py.File(merged) as got:
        assert (got["event_table/event_id"][:] == sent["event_table/event_id"][:]).all()


def test_a_bad_event_is_listed_and_the_others_are_answered_and_drawn(kit, demo, tmp_path):
    spoilt = tmp_path / "spoilt.h5"
    shutil.copy(EVENTS, spoilt)
    with h5py.File(spoilt, "r+") as file:
        event = file["event_table/event_id"][1]
        rows = np.flatnonzero((file["hit_table/event_id"][:] == event).all(axis=1))
        file["hit_table/integral"][rows[3]] = 5e6
    out = tmp_path / "results.h5"
    flags = ["--out", str(out), "--display", str(tmp_path / "displays")]
    done = kit.run("infer", str(spoilt), "--url", _url(demo, "http"), *flags, script=True)
    assert done.returncode == 1
    assert "integral" in done.stdout + done.stderr
    assert "row 3" in done.stdout + done.stderr
    with h5py.File(out) as got:
        assert len(got["event_table/event_id"]) == 4
    pictures = list((tmp_path / "displays").glob("*.png"))
    assert len(pictures) == 4
    assert all(picture.read_bytes().startswith(b"\x89PNG") for picture in pictures)


def test_a_killed_server_costs_no_event(kit, single, tmp_path):
    """The supervisor starts the server again; the client waits and repeats."""
    out = tmp_path / "results.h5"
    files = []
    for index in range(8):
        files.append(tmp_path / f"events{index}.h5")
        shutil.copy(EVENTS, files[-1])
    command = [sys.executable, "scripts/infer.py", *map(str, files)]
    command += ["--url", _url(single, "grpc"), "--concurrency", "1", "--out", str(out), "--json"]
    process = subprocess.Popen(
        command, cwd=CHECKOUT, env=kit.variables, stdout=subprocess.PIPE, text=True
    )
    until(lambda: bool(list(tmp_path.glob("*results*"))), "the first results")
    time.sleep(0.5)
    os.kill(single["server"]["pid"], signal.SIGKILL)
    text, _ = process.communicate(timeout=120)
    assert process.returncode == 0, text
    assert json.loads(text)["events"] == 40


GRAPHS = CHECKOUT / "tests/unit/deploy/events/data/graphs_second.gnn.h5"


def test_an_evaluation_has_the_figures_of_the_labels_that_infer_writes(kit, demo, tmp_path):
    flags = ["--url", _url(demo, "grpc")]
    out, plot = tmp_path / "results.h5", tmp_path / "confusion.png"
    done = kit.run("infer", str(GRAPHS), *flags, "--out", str(out))
    assert done.returncode == 0, done.stderr
    done = kit.run("evaluate", str(GRAPHS), "--split", "all", *flags, "--plot", str(plot), "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert (found["events"], found["failed"], found["instance"]) == (3, [], None)
    right = signal = kept = 0
    with h5py.File(GRAPHS) as file, h5py.File(out) as got:
        ids, labels = got["hit_table/event_id"][:, 2], got["hit_table/semantic_label"][:, 0]
        scores = got["hit_table/filter_score"][:, 0]
        for graph in file["dataset"].values():
            here = ids == graph[()]["metadata/event"]
            order = np.argsort(graph[()]["hit/plane"], kind="stable")
            truth = graph[()]["hit/y_semantic"][order]
            right += (labels[here] == truth).sum()
            signal += (truth >= 0).sum()
            kept += ((scores[here] >= 0.5) == (truth >= 0)).sum()
    assert found["semantic"]["accuracy"] == pytest.approx(right / signal)
    assert found["filter"]["accuracy"] == pytest.approx(kept / len(ids))
