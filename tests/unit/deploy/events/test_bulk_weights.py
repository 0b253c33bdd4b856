"""Bulk runs and weights: what was made of others is neither kept nor taken for done."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from deploy.events.bulk import Progress, label_files
from deploy.events.client import Client
from deploy.host.errors import ClientError
from tests.unit.deploy.events.many import FILES, MODEL, Server, run, write_files
from tests.unit.deploy.events.played import Weighted


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("events"))


def test_a_file_whose_answers_are_forbidden_is_not_kept_and_those_before_are(files, tmp_path):
    allowed = iter(range(3))

    def check() -> None:
        if next(allowed, None) is None:
            raise ClientError("other weights")

    with pytest.raises(ClientError, match="other weights"):
        run(files, tmp_path / "out", check=check)
    assert len(list((tmp_path / "out").glob("*.json"))) == 3


class Replaced(Weighted):
    """The one named two has ``then`` in place of its weights once asked, its connections open."""

    then = "1" * 64

    def infer(self, *request: Any) -> dict[str, Any]:
        time.sleep(0.01)  # so that both are asked
        if self.endpoint.host == "two":
            self.weights["two"] = self.then
        return super().infer(*request)


@pytest.fixture
def replaced(monkeypatch):
    monkeypatch.setattr("deploy.events.client.TritonTransport", Replaced)
    monkeypatch.setattr(Replaced, "weights", {"one": "0" * 64, "two": "0" * 64})
    return Replaced


def label_with(client: Client, files: list[Path], into: Path) -> Progress:
    arguments = (client.model, client.url, client.connect, client.refuse_other_weights)
    return label_files(files, into, *arguments, concurrency=2)


@pytest.mark.parametrize("urls", [["grpc://two"], ["grpc://one", "grpc://two"]], ids=len)
def test_weights_that_a_server_is_given_while_the_first_file_is_labelled_end_the_run(
    urls, files, tmp_path, replaced
):
    with Client(*urls) as client, pytest.raises(ClientError, match="other weights than nugraph3"):
        label_with(client, files, tmp_path)
    assert not list(tmp_path.glob("*.json"))


def test_weights_that_a_server_did_not_name_before_are_others(files, tmp_path, replaced):
    replaced.weights["two"] = ""
    with Client("grpc://two") as client, pytest.raises(ClientError, match="were given other"):
        label_with(client, files, tmp_path)


def test_a_server_that_is_away_when_a_file_is_done_costs_no_file(
    files, tmp_path, replaced, monkeypatch
):
    monkeypatch.setattr(replaced, "then", "away")
    with Client("grpc://one", "grpc://two") as client:
        assert label_with(client, files, tmp_path).done == FILES


def test_results_of_other_weights_or_inputs_are_not_mixed(files, tmp_path):
    run(files[:1], tmp_path / "out")
    other = replace(MODEL, parameters={"weights_sha256": "1" * 64})
    with pytest.raises(ClientError, match="other weights"):
        label_files(files[:1], tmp_path / "out", other, "", Server, lambda: None, concurrency=1)
    alike = tmp_path / f"{files[0].stem}.hdf5"
    alike.write_bytes(files[0].read_bytes())
    with pytest.raises(ClientError, match=r"00\.json is of events00\.h5, not of events00\.hdf5"):
        run([alike], tmp_path / "out")
    copy = tmp_path / files[0].name
    copy.write_bytes(files[1].read_bytes())
    with pytest.raises(ClientError, match="results of another"):
        run([copy], tmp_path / "out")
    with pytest.raises(ClientError, match="two files have one name"):
        run([files[0], copy], tmp_path / "out")
    with pytest.raises(ClientError, match="in the folder for results"):
        run([copy], tmp_path)
