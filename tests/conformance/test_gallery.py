"""Every model of the gallery: ready, right, as accurate as its page says, and well guarded."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from PIL import Image

from deploy.client.example import example_inputs
from deploy.deployment.deployment import find_site_models
from deploy.triton.golden import golden_of
from numl_formats.golden import difference
from tests.bad_requests import BAD, BAD_STEPS, STEPS, picture
from tests.gallery import (
    GALLERY,
    ask,
    assert_counted,
    claimed,
    counts,
    outcome,
    responses,
    run_client,
    words,
)
from tests.inputs import inputs_of
from tests.kit import SOON_S, until

MODELS = find_site_models(GALLERY)
ENTRIES = tuple(model for model in MODELS if (GALLERY / model / "client.py").is_file())
READERS = ("ocr", "ocr_bls")
# With each detector: the model, and what is asked besides.
READING: tuple[tuple[str, dict[str, np.ndarray]], ...] = (
    ("ocr", {}),
    ("ocr_bls", {}),
    ("ocr_bls", {"detector": np.array([b"contours"], np.object_)}),
)
# On engines other than local. The rest is the same server with the same models.
SPOT = ("zero_shot", "sentence_bert", "hit_finder", "electron_lifetime")


@pytest.fixture(scope="module")
def served(kit):
    """The gallery in one server; in a container a part of it."""
    models = MODELS if kit.engine == "local" else SPOT
    shared = ["--shared-memory"] if kit.engine == "local" else []
    yield kit.up("gallery", "--models-dir", str(GALLERY), "--models", ",".join(models), *shared)
    kit.end("gallery")


@pytest.fixture(scope="module")
def whole(kit, served):
    """All of the gallery."""
    if kit.engine != "local":
        pytest.skip("in full on one engine")
    return served


@pytest.fixture(scope="module")
def server(whole):
    with triton.InferenceServerClient(f"127.0.0.1:{whole['ports']['grpc']}") as client:
        yield client


@pytest.fixture(scope="module")
def cora(real_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("cora")
    shutil.copytree(real_data / "planetoid", folder / "planetoid")
    graph = folder / "cora.npz"
    train = [sys.executable, GALLERY / "gat" / "train.py", "--data", folder / "planetoid"]
    subprocess.run([*train, "--graph", graph], check=True, capture_output=True)
    return graph


def test_every_model_answers_its_reference_output(kit, served):
    # Of all of them, beside other servers: reading text takes long on a busy host.
    status = kit.json("status", "--name", "gallery", "--timeout", str(SOON_S))
    assert status["ok"], status
    judged = {m["model"]: m["smoke"]["compared"] for m in status["models"]}
    assert judged == {model: model in ENTRIES for model in served["models"]}


def test_smoke_compares_a_decoupled_model_over_grpc_alone(kit, served):
    answer = kit.json("smoke", "--name", "gallery", "--models", "hit_finder,zero_shot")
    assert answer["ok"], answer
    judged = {(m["url"].partition(":")[0], m["model"]): m["latency"] for m in answer["results"]}
    assert [key for key, latency in judged.items() if latency is None] == [("http", "hit_finder")]
    assert len(judged) == 4


@pytest.mark.parametrize("model", ENTRIES)
def test_the_reference_output_is_what_numlkit_golden_writes(kit, whole, model):
    answer = kit.json("golden", model, "--name", "gallery", "--dry-run")
    golden = golden_of(GALLERY / model)
    assert answer["outputs"] == {n: list(a.shape) for n, a in golden.outputs.items()}
    inputs = example_inputs(GALLERY / model)
    for name, array in golden.inputs.items():
        np.testing.assert_array_equal(inputs[name], array)


@pytest.mark.parametrize("model", ENTRIES)
def test_bad_requests_are_refused_in_one_line_each_and_good_ones_beside_them_answered(
    kit, whole, model
):
    golden, inputs = golden_of(GALLERY / model), example_inputs(GALLERY / model)
    faults = [bad for bad in BAD if bad.model == model]
    wrong = [
        {**inputs, bad.tensor: bad.change(inputs.get(bad.tensor, np.empty(0)))} for bad in faults
    ]
    assert wrong
    asked = [*wrong[1:], inputs, wrong[0]]
    with ThreadPoolExecutor(len(asked)) as pool:
        *refused, good, first = pool.map(partial(outcome, whole, model), asked)
    for bad, said in zip(faults, [first, *refused], strict=True):
        assert bad.says in str(said)
        assert "\n" not in str(said).strip()
    for answer in (good, outcome(whole, model, inputs)):
        assert isinstance(answer, dict), answer
        assert difference(golden, answer) is None
    assert kit.noted("gallery")["heals"] == 0


@pytest.mark.parametrize("bad", BAD_STEPS, ids=lambda bad: f"{bad.model}-{bad.tensor}")
def test_a_step_that_is_asked_by_itself_refuses_what_the_one_before_it_never_makes(whole, bad):
    good = STEPS[bad.model]
    said = outcome(whole, bad.model, {**good, bad.tensor: bad.change(good[bad.tensor])})
    assert bad.says in str(said)
    assert "\n" not in str(said).strip()
    assert isinstance(outcome(whole, bad.model, good), dict)


@pytest.mark.parametrize(
    ("part", "scale"),
    # The box around the brain reaches out of the second and third by about as much as they have.
    [(np.s_[:20, :20, :20], 3e36), (np.s_[:26, 32:, 1:27], 1), (np.s_[32:, 20:45, 1:17], 1)],
)
def test_the_brain_of_a_part_of_a_volume_in_any_unit_is_found_or_not(whole, part, scale):
    volume = np.float32(scale) * (example_inputs(GALLERY / "brain")["volume"][part] - 100)
    answer = outcome(whole, "brain", {"volume": volume})
    assert isinstance(answer, dict), answer
    assert answer["mask"].shape == volume.shape


@pytest.mark.parametrize(
    # In two environments; 2^64 bytes more are none, in 64 bits.
    ("model", "tensor", "more"),
    [("gat", "x__0", 2**62), ("brain", "volume", 2**54)],
)
def test_a_shape_that_no_array_can_have_ends_no_process(kit, whole, server, model, tensor, more):
    inputs = example_inputs(GALLERY / model)
    tensors = {each.name(): each for each in inputs_of(triton, inputs)}
    first, *others = tensors[tensor].shape()
    tensors[tensor].set_shape([first + more, *others])
    with pytest.raises(triton.InferenceServerException):
        server.infer(model, list(tensors.values()))
    assert isinstance(outcome(whole, model, inputs), dict)
    assert kit.noted("gallery")["heals"] == 0


def check_client(served: dict[str, Any], drawn: Path, model: str, *words: str) -> None:
    """Check that a client prints what its page claims, and draws it."""
    if model not in served["models"]:
        pytest.skip("in full on one engine")
    said = run_client(model, served, *words, "--out", str(drawn))
    assert re.findall(r"([\d.]+)%", said)[0] == str(claimed(model))
    assert drawn.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("brain", ["--shared-memory"]),
        *((model, []) for model in ("event_image", "hit_finder", "electron_lifetime")),
        *((model, []) for model in ("recommend", "zero_shot")),
    ],
)
def test_a_client_finds_what_the_page_says_and_draws_it(served, tmp_path, model, words):
    check_client(served, tmp_path / "drawn.png", model, *words)


@pytest.mark.parametrize("model", ["gat", "graphsage"])
def test_a_client_of_cora_finds_what_the_page_says_and_draws_it(served, cora, tmp_path, model):
    check_client(served, tmp_path / "drawn.png", model, "--graph", str(cora))


@pytest.mark.parametrize(("model", "how"), READING)
def test_a_blank_picture_has_no_text(server, model, how):
    answer = ask(server, model, picture(Image.new("RGB", (640, 480), "white")) | how)
    shapes = {name: answer.as_numpy(name).shape for name in ("texts", "scores", "boxes")}
    assert shapes == {"texts": (0,), "scores": (0,), "boxes": (0, 4, 2)}


@pytest.mark.parametrize(
    ("model", "how", "scale"),
    # A large picture is made smaller by each of the detectors.
    [*((*each, 1) for each in READING), (*READING[0], 6), (*READING[2], 6)],
)
def test_the_words_of_the_sample_are_read_as_well_as_the_page_says(server, model, how, scale):
    with Image.open(GALLERY / "ocr" / "sample.png") as sample:
        larger = sample.convert("RGB").resize((sample.width * scale, sample.height * scale))
    texts = ask(server, model, picture(larger) | how).as_numpy("texts")
    wanted, read = Counter(words()), Counter(b" ".join(texts).decode().split())
    right = (wanted & read).total() / wanted.total()
    assert right >= claimed("ocr") / 100


def test_sentence_vectors_are_those_that_are_published(server):
    texts = example_inputs(GALLERY / "sentence_bert")
    vectors = ask(server, "sentence_bert", texts).as_numpy("vector")
    # Of the first two sentences, as sbert.net's semantic search shows them.
    assert vectors[0] @ vectors[1] == pytest.approx(0.7553, abs=1e-4)


@pytest.mark.parametrize(
    ("model", "bad", "says"),
    [
        ("sentence_bert", np.array([b""], np.object_), "text is empty"),
        (
            "event_image",
            np.full((3, 96, 96), -1, np.float32),
            "image has charges that are negative",
        ),
    ],
)
def test_requests_that_wait_together_run_as_one_batch_and_a_bad_one_spoils_only_its_own(
    server, model, bad, says
):
    ((name, rows),) = example_inputs(GALLERY / model).items()
    (output,) = (each.name for each in server.get_model_metadata(model).outputs)
    alone = ask(server, model, {name: rows}).as_numpy(output)
    before = server.get_inference_statistics(model).model_stats[0]

    def answer(row: np.ndarray) -> np.ndarray | str:
        try:
            return ask(server, model, {name: row[None]}).as_numpy(output)
        except triton.InferenceServerException as error:
            return str(error.message())

    asked = [*rows, bad] * 6
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(answer, asked))
    for number, each in enumerate(found):
        if number % 5 == 4:
            assert says in str(each)
        else:
            np.testing.assert_allclose(each[0], alone[number % 5], atol=1e-5)
    after = server.get_inference_statistics(model).model_stats[0]
    runs = after.execution_count - before.execution_count
    assert runs < len(asked)


def test_triton_has_the_features_that_leave_no_trace_in_its_statistics(server):
    def config(model: str) -> Any:
        return server.get_model_config(model).config

    assert [group.count for group in config("ocr_bls").instance_group] == [2]
    assert [warm_up.name for warm_up in config("event_image").model_warmup] == ["blank"]
    environments = {
        model: config(model).parameters["EXECUTION_ENV_PATH"].string_value
        for model in ("gat", "hit_finder", "ocr_read", "sentence_bert")
    }
    assert len(set(environments.values())) == 4, environments
    best = [triton.InferRequestedOutput("scores", class_count=1)]
    image = example_inputs(GALLERY / "event_image")
    answer = server.infer("event_image", inputs_of(triton, image), outputs=best)
    names = (GALLERY / "event_image" / "labels.txt").read_text().splitlines()
    assert all(found.decode().split(":")[2] in names for (found,) in answer.as_numpy("scores"))
    some = [triton.InferRequestedOutput("vectors")]
    graph = inputs_of(triton, example_inputs(GALLERY / "graphsage"))
    assert server.infer("graphsage", graph, outputs=some).as_numpy("nearest") is None


def test_the_clients_picture_is_drawn(whole, tmp_path):
    said = run_client("ocr", whole, "--out", str(tmp_path / "found.png"))
    assert len(said.splitlines()) == 12
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_bls_sends_lines_that_triton_batches_and_the_ensemble_its_steps(server):
    before = {model: counts(server, model) for model in MODELS}
    asked = ["ocr_bls", "ocr_bls", "ocr"]
    with ThreadPoolExecutor(len(asked)) as pool:
        list(pool.map(lambda model: ask(server, model, example_inputs(GALLERY / model)), asked))
    wanted = {"ocr": 1, "ocr_read": 1, "ocr_detect": 3, "ocr_crop": 3}
    runs = assert_counted(server, before, {**wanted, "ocr_line": 2 * 12})
    assert runs.pop("ocr_line") < 2 * 12
    assert runs == wanted


@pytest.mark.parametrize(
    ("model", "called"),
    [
        ("brain", {"brain_locate": 1, "brain_segment": 1}),
        ("recommend", {"sentence_bert": 1}),
        ("zero_shot", {"sentence_bert": 4}),  # the text and three labels, as one batch
    ],
)
def test_what_a_model_asks_of_others_is_in_their_statistics(server, model, called):
    before = {each: counts(server, each) for each in called}
    ask(server, model, example_inputs(GALLERY / model))
    assert set(assert_counted(server, before, called).values()) == {1}


def test_a_decoupled_model_answers_one_request_in_parts(whole, server):
    before, sent = {"hit_finder": counts(server, "hit_finder")}, responses(whole)
    answer = outcome(whole, "hit_finder", example_inputs(GALLERY / "hit_finder"))
    assert [name for name in answer if name.endswith("/wire")] == ["0/wire", "1/wire", "2/wire"]
    assert assert_counted(server, before, {"hit_finder": 1}) == {"hit_finder": 1}
    until(lambda: responses(whole) == sent + 3, "the metric, which the model publishes after")


def send(
    server: triton.InferenceServerClient, run: int | str, charge: float, **place: bool
) -> triton.InferResult:
    """Send an event of three hits to the sequence ``run`` of electron_lifetime."""
    event = {"time": np.arange(3, dtype=np.float32), "charge": np.float32([charge, 90, 70])}
    return server.infer("electron_lifetime", inputs_of(triton, event), sequence_id=run, **place)


def test_each_sequence_has_a_sum_of_its_own_that_a_bad_event_leaves_alone(server):
    def hits(run: int | str, **place: bool) -> int:
        return int(send(server, run, 100, **place).as_numpy("hits")[0])

    before = {"electron_lifetime": counts(server, "electron_lifetime")}
    assert [hits(run, sequence_start=True) for run in (901, 902)] == [3, 3]
    assert hits(902) == 6
    with pytest.raises(triton.InferenceServerException, match="charge has values that are not"):
        send(server, 902, -1)
    assert hits(902, sequence_end=True) == 9
    for run in range(1000, 1070):  # more runs, one after the other, than may be open at a time
        assert hits(run, sequence_start=True, sequence_end=True) == 3
    assert hits(901, sequence_end=True) == 6
    assert_counted(server, before, {"electron_lifetime": 76})
    with pytest.raises(triton.InferenceServerException, match="must specify the START flag"):
        send(server, 901, 100)
    # By names, too, of any length that Triton takes, however alike they begin.
    names = ["run-2024-1", "run-2024-2", "y" * 128]
    assert [hits(name, sequence_start=True) for name in names] == [3, 3, 3]
    assert [hits(name, sequence_end=True) for name in names] == [6, 6, 6]


def test_one_bad_picture_among_others_spoils_only_its_own_answer(whole):
    good = example_inputs(GALLERY / "ocr")
    bad = {"picture": np.array([b"no picture"], np.object_)}
    asked = [(model, tensors) for model in READERS for tensors in (good, bad)]
    with ThreadPoolExecutor(len(asked)) as pool:
        found = list(pool.map(lambda each: outcome(whole, *each), asked))
    assert [len(answer["texts"]) for answer in found[::2]] == [12, 12]
    assert all("picture is none that OpenCV can read" in str(said) for said in found[1::2])
