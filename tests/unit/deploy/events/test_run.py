"""A whole run over a file; a fake stands for the server."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import pytest
from matplotlib.figure import Figure

from deploy.client.transport import ServedModel
from deploy.events import display
from deploy.events.display import DisplayError, check_folder
from deploy.events.files import EventFile
from deploy.events.results import ResultsWriter
from deploy.events.run import Tally, send
from deploy.host.errors import ClientError, KitError
from tests.inputs import EVENTS
from tests.unit.deploy.events.played import MODEL, Fake


class Refusals(Fake):
    def infer(self, _model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
        raise ClientError("too large")


def sent(out: Path, connect: Any = Fake, **more: Any) -> Tally:
    return send([EVENTS], MODEL, "http://x", connect, out=out, **more)


def test_each_event_has_a_display_and_one_that_cannot_be_written_costs_no_results(
    tmp_path, monkeypatch
):
    out, displays = tmp_path / "results.h5", tmp_path / "displays"
    monkeypatch.setattr(display, "draw", lambda *_: Figure((1, 1)))
    tally = sent(out, displays=tmp_path / "new")
    assert sorted(tally.displays) == sorted((tmp_path / "new").iterdir())
    assert len(tally.displays) == len(tally.latencies) > 0
    displays.touch()
    tally = sent(out, displays=displays)
    assert tally.ended.cause.endswith("cannot be written: File exists")
    assert tally.ended.remedy == "choose another --display"
    assert not tally.ok
    with h5py.File(out) as results:
        assert results.attrs["complete"]
        assert len(results["hit_table/event_id"]) == tally.hits > 0


@pytest.mark.parametrize(
    ("connect", "wanted", "reason"),
    [(Fake, [(9, 9, 9)], "no such event in the files"), (Refusals, [], "too large")],
)
def test_a_run_that_answers_nothing_keeps_the_results_of_an_earlier_one(
    tmp_path, connect, wanted, reason
):
    out = tmp_path / "results.h5"
    assert sent(out).ok
    before = out.read_bytes()
    tally = sent(out, connect, wanted=wanted)
    assert {failure.reason for failure in tally.failures} == {reason}
    assert tally.out is None
    assert out.read_bytes() == before


def test_a_run_whose_events_all_fail_leaves_their_reasons_where_no_results_are(tmp_path):
    tally = sent(tmp_path / "new.h5", Refusals)
    assert tally.out == tmp_path / "new.h5"
    with h5py.File(tally.out) as results:
        assert len(results["failed_table/event_id"]) == len(tally.failures) > 0


def test_results_do_not_take_the_place_of_what_is_no_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(KitError, match="is not a regular file"):
        sent(pipe)
    assert pipe.is_fifo()


def test_where_no_display_can_be_written_it_is_told_before_an_event_is_sent(tmp_path):
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DisplayError, match="is not a folder"):
            check_folder(folder)
    check_folder(tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_keeps_what_was_answered(tmp_path, monkeypatch, number):
    out, asked = tmp_path / "results.h5", []
    finish = ResultsWriter._finish

    def again(writer: ResultsWriter) -> None:
        if number != signal.SIGINT:
            signal.raise_signal(number)  # a shell that exits sends SIGHUP twice
        finish(writer)

    monkeypatch.setattr(ResultsWriter, "_finish", again)

    class Stopped(Fake):
        def infer(self, model: ServedModel, tensors: Mapping[str, Any]) -> dict[str, Any]:
            asked.append(tensors)
            if len(asked) == 2:
                signal.raise_signal(number)
            return super().infer(model, tensors)

    before = signal.signal(number, signal.default_int_handler)
    try:
        tally = sent(out, Stopped, concurrency=1)
    finally:
        signal.signal(number, before)
    assert tally.interrupted == number
    with h5py.File(out) as results:
        assert 0 < len(results["event_table/event_id"]) < len(EventFile(EVENTS))
        assert not results.attrs["complete"]
