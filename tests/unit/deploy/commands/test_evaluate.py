"""``numlkit evaluate`` on pynuml's own files. The transport is a fake: no server is needed."""

import errno
import json
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest

from deploy.client import asked
from deploy.client.transport import ServedModel
from deploy.commands import evaluate
from deploy.events import client, inference
from deploy.events.graphs import GraphFile
from deploy.events.training import read_training
from deploy.host.errors import ClientError, RequestError, ServerAwayError
from numl_formats.contract import INPUTS
from tests.unit.deploy.events.played import Fake

DATA = Path(__file__).parents[1] / "events" / "data"
GRAPHS, EVENTS = DATA / "graphs_second.gnn.h5", DATA / "graphs_events.h5"
CLASSES = ("pion", "muon", "kaon", "hadron", "shower", "michel", "diffuse")
FLAVOURS = ("cc_nue", "cc_numu", "cc_nutau", "nc")
SAID = {"semantic_classes": ",".join(CLASSES), "event_classes": ",".join(FLAVOURS)}
OUTPUTS = ("x_semantic_u", "x_filter_u", "x_i_u", "e_evt", "v_evt")


class Oracle(Fake):
    """Stands in for a server whose model is right, but takes each muon for a pion."""

    said: Mapping[str, str] = SAID
    fault: Exception | None = None
    interrupts = False

    def __init__(self, endpoint, *, timeout):
        self.truths = {}
        with GraphFile(GRAPHS) as file:
            for index in range(len(file)):
                event = file.read(index)
                ids = event.tensors["hit_table_hit_id"]
                self.truths[ids.tobytes()[:64]] = (ids, file.truth(index))

    def describe(self, model):
        return ServedModel(model, INPUTS, OUTPUTS, self.said)

    def infer(self, model, tensors):
        if self.interrupts:
            os.kill(os.getpid(), signal.SIGINT)
        order = np.argsort(tensors["hit_table_local_plane"], kind="stable")
        ids = tensors["hit_table_hit_id"][order]
        known, truth = self.truths[ids.tobytes()[:64]]
        if self.fault is not None and truth.event == 3:
            raise self.fault
        assert (known == ids).all()
        semantic = np.where(truth.semantic == 1, 0, truth.semantic)
        outputs = {"e_evt": np.eye(4)[[truth.event]], "v_evt": truth.vertex[None] + [3, 0, 4]}
        for number, plane in enumerate("uvy"):
            rows = tensors["hit_table_local_plane"][order] == number
            outputs[f"x_semantic_{plane}"] = np.eye(7)[np.maximum(semantic, 0)][rows]
            outputs[f"x_filter_{plane}"] = 0.1 + 0.8 * truth.signal[rows]
            outputs[f"x_i_{plane}"] = truth.instance[rows]
        return outputs


@pytest.fixture(autouse=True)
def oracle(monkeypatch):
    class Own(Oracle):
        pass

    monkeypatch.setattr(client, "TritonTransport", Own)
    monkeypatch.setattr(asked, "default_endpoint", lambda protocol: "localhost")
    return Own


def run(*arguments):
    return evaluate.main([str(a) for a in arguments])


def report(capsys, *arguments, status=0):
    assert run(*arguments, "--json") == status
    return json.loads(capsys.readouterr().out)


def test_the_figures_are_printed(capsys):
    assert run(GRAPHS, "--quiet") == 0
    assert capsys.readouterr().out == (DATA / "evaluated.txt").read_text().format(file=GRAPHS)


def test_a_file_of_any_name_gets_a_picture(tmp_path, capsys):
    name = "$A_$ na\udce9me.gnn.h5"
    shutil.copy(GRAPHS, tmp_path / name)
    report(capsys, tmp_path / name, "--plot", tmp_path / "matrices.png")
    assert (tmp_path / "matrices.png").read_bytes().startswith(b"\x89PNG")


def test_a_picture_that_cannot_be_written_costs_no_figures(tmp_path, capsys, monkeypatch):
    figures = report(capsys, GRAPHS)["metrics"]
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(evaluate, "write_matrices", Mock(side_effect=full))
    said = f"{tmp_path / 'm.png'} cannot be written: No space left on device"
    answer = report(capsys, GRAPHS, "--plot", tmp_path / "m.png", status=1)
    assert (answer["ok"], answer["error"], answer["metrics"]) == (False, said, figures)
    assert run(GRAPHS, "--plot", tmp_path / "m.png", "--quiet") == 1
    shown = capsys.readouterr()
    assert shown.out == (DATA / "evaluated.txt").read_text().format(file=GRAPHS)
    assert f"error: {said}\n" in shown.err


def test_a_picture_where_this_user_may_not_write_is_refused_at_once(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)
    answer = report(capsys, GRAPHS, "--plot", tmp_path / "m.png", status=2)
    assert answer["error"].endswith(f"m.png: this user may not write to {tmp_path}")


def test_the_test_split_is_evaluated_or_the_one_that_is_named(capsys):
    for flags, split, events in (((), "test", 2), (["--split", "train"], "train", 1)):
        found = report(capsys, GRAPHS, *flags)
        assert (found["split"], found["events"]) == (split, events)
    assert report(capsys, GRAPHS, "--split", "all")["events"] == 3


def test_a_file_of_events_tells_signal_event_and_vertex(capsys):
    found, of_graphs = report(capsys, EVENTS), report(capsys, GRAPHS, "--split", "all")
    assert (found["split"], found["semantic"], found["instance"]) == ("all", None, None)
    assert found["filter"]["accuracy"] == 1
    for name in ("filter", "event"):
        assert found[name] == of_graphs[name]
    assert found["vertex"]["median"] == pytest.approx(5, rel=1e-5)


@pytest.mark.parametrize(
    ("logged", "split"),
    [
        ({"recall_semantic/test": 0.8, "vertex-resolution/test": 7, "loss/test": 3}, "test"),
        ([{"semantic/recall-test": 0.8, "vertex/resolution-test": 7}, {}], "test"),
        ({"semantic/recall-val": 0.8, "vertex/resolution-val": 7, "epoch": 3}, "val"),
    ],
)
def test_the_figures_of_the_training_stand_beside(tmp_path, capsys, logged, split):
    (tmp_path / "logged.json").write_text(json.dumps(logged))
    assert run(GRAPHS, "--training", tmp_path / "logged.json", "--quiet") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["vertex/resolution", "5", "7"] in lines
    assert [line[2] for line in lines if line[0] == "semantic/recall"] == ["0.8"]
    assert ["event/recall", "1", "-"] in lines


def test_an_earlier_answer_stands_beside_unless_its_classes_are_others(tmp_path, capsys):
    earlier = report(capsys, GRAPHS)
    path = tmp_path / "earlier.json"
    path.write_text(json.dumps(earlier))
    assert report(capsys, GRAPHS, "--training", path)["training"] == earlier["metrics"]
    for change, message in (
        ({"planes": ["u", "v"]}, "--training has the planes u, v, this evaluation u, v, y"),
        ({"semantic": {"classes": ["a"]}}, "--training has the semantic classes a, this"),
        ({"planes": 3}, "--training has the planes 3, this evaluation u, v, y"),
    ):
        path.write_text(json.dumps(earlier | change))
        assert message in report(capsys, GRAPHS, "--training", path, status=1)["error"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[", "not JSON"),
        (100_000 * "[", "not JSON"),
        ('{"loss/test": 1}', "holds no figures of a test or validation"),
        ('{"semantic/recall-test": NaN}', "holds no figures of a test or validation"),
    ],
)
def test_figures_that_are_none_are_refused(tmp_path, content, message):
    (tmp_path / "logged.json").write_text(content)
    with pytest.raises(ClientError, match=message):
        read_training(tmp_path / "logged.json")


@pytest.mark.parametrize("value", ["NaN", "1e999", "null", '"0.5"', "1" + 400 * "0"])
@pytest.mark.parametrize(
    ("form", "split"), [('{{"metrics": {{{}}}}}', ""), ("{{{}}}", "-test")], ids=["answer", "log"]
)
def test_a_figure_that_is_no_number_is_left_out(tmp_path, value, form, split):
    figures = f'"semantic/recall{split}": {value}, "semantic/f1{split}": 0.5'
    (tmp_path / "logged.json").write_text(form.format(figures))
    assert read_training(tmp_path / "logged.json") == {"metrics": {"semantic/f1": 0.5}}


def test_other_classes_are_not_compared(capsys, oracle):
    oracle.said = SAID | {"semantic_classes": "MIP,HIP,shower,michel,diffuse"}
    assert report(capsys, GRAPHS, status=1)["error"] == (
        f"{GRAPHS} has the semantic classes {', '.join(CLASSES)}, nugraph3 MIP, HIP, shower, "
        "michel, diffuse: they cannot be compared"
    )


def test_a_server_that_names_no_classes_is_taken_to_have_the_files(capsys, oracle):
    oracle.said = {}
    assert tuple(report(capsys, GRAPHS)["semantic"]["classes"]) == CLASSES


def test_a_file_without_truth_is_refused(tmp_path, capsys):
    shutil.copy(EVENTS, tmp_path / "events.h5")
    with h5py.File(tmp_path / "events.h5", "r+") as file:
        del file["edep_table"], file["event_table/is_cc"], file["event_table/nu_vtx_corr"]
    answer = report(capsys, tmp_path / "events.h5", status=1)
    assert answer["error"].endswith("has no truth of what nugraph3 answers")
    with h5py.File(tmp_path / "empty.gnn.h5", "w") as file:
        file.create_group("dataset")
    answer = report(capsys, tmp_path / "empty.gnn.h5", "--split", "all", status=1)
    assert answer["error"].endswith("empty.gnn.h5 has no events")
    answer = report(capsys, EVENTS, "--split", "test", status=1)
    assert answer["error"].endswith("is no graph file, and has no splits")


def test_an_event_that_is_refused_is_listed_and_left_out(tmp_path, capsys, oracle):
    oracle.fault = RequestError("too many hits")
    answer = report(capsys, GRAPHS, "--split", "all", status=1)
    refused = [each["event_id"] for each in answer["failed"]]
    assert answer["events"] == 3 - len(refused) > 0
    assert answer["failed"][0]["reason"] == "too many hits"
    assert answer["event"]["true"]["nc"] == 0


@pytest.mark.parametrize("lost", ["server", "interrupted"])
def test_an_evaluation_that_is_cut_short_writes_nothing(
    tmp_path, capsys, monkeypatch, oracle, lost
):
    if lost == "server":
        monkeypatch.setattr(inference, "PATIENCE_S", 0.0)
        away = ServerAwayError("connection refused")
        monkeypatch.setattr(oracle, "infer", Mock(side_effect=away))
    else:
        oracle.interrupts = True
    status = 1 if lost == "server" else 130
    answer = report(capsys, GRAPHS, "--plot", tmp_path / "m.png", status=status)
    assert not answer["ok"]
    assert set(answer) == {"ok", "error", "remedy"}
    assert list(tmp_path.iterdir()) == []
