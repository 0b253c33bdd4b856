"""A server's health, asked of one that is played here: a real one cannot be made to lie."""

import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from numl_serving import judging
from numl_serving.health import main
from numl_serving.judging import UnhealthyError, check_repository
from played_triton import GOLDEN, HITS, Triton
from small_models import random_event

from numl_formats.golden import GoldenEvent, write_golden
from numl_formats.inference import TritonHttp


def ask(triton: Triton, repository: Path, *flags: str) -> int:
    return main(["--port", str(triton.port), *flags, str(repository)])


def test_golden_answers_are_healthy(triton, repository, capsys):
    assert ask(triton, repository) == 0
    assert capsys.readouterr().out == "healthy: nugraph2, nugraph3 gave their golden answers\n"


def test_a_sites_own_model_is_asked_only_whether_it_is_ready(triton, repository, capsys):
    version = repository / "classifier" / "1"
    version.mkdir(parents=True)
    (version.parent / "config.pbtxt").touch()
    np.savez(version / "golden.npz", **{"input/image": np.zeros(2), "output/label": np.zeros(1)})
    triton.ready["classifier"] = True
    assert ask(triton, repository) == 0
    assert capsys.readouterr().out == (
        "healthy: nugraph2, nugraph3 gave their golden answers; classifier is ready\n"
    )
    triton.ready["classifier"] = False
    assert ask(triton, repository) == 1
    assert capsys.readouterr().out == "unhealthy: classifier: not ready\n"


@pytest.mark.parametrize(
    ("happens", "said"),
    [
        (
            lambda t: t.answer.update(x_semantic_u=GOLDEN["x_semantic_u"] + 1),
            "wrong answer: output x_semantic_u is off by 1",
        ),
        (lambda t: setattr(t, "empty", True), "the answer cannot be read: cannot reshape"),
        (lambda t: setattr(t, "error", "Stub is not healthy."), "Stub is not healthy."),
    ],
    ids=["other values", "a shape without values", "a dead stub of a model that is ready"],
)
def test_each_model_that_does_not_answer_right_is_unhealthy(
    triton, repository, capsys, happens, said
):
    happens(triton)
    assert ask(triton, repository) == 1
    out = capsys.readouterr().out
    assert out.startswith(f"unhealthy: nugraph2: {said}")
    assert f"; nugraph3: {said}" in out
    assert out.count("\n") == 1


@pytest.fixture
def server(triton):
    return TritonHttp("127.0.0.1", triton.port, deadline=time.monotonic() + 60)


def list_processes(
    folder: Path, *models: str, served: str | None = None, servers: dict[int, str] | None = None
) -> Path:
    """Write command lines as /proc shows them; that of a dead process is empty.

    Args:
        folder: Where to.
        models: Those that have a stub.
        served: The repository that they come from; None: the folder's parent.
        servers: Repositories by the HTTP ports of the servers that are to be seen.
    """
    triton, served = "/opt/tritonserver", served or str(folder.parent)
    stub = f"{triton}/backends/python/triton_python_backend_stub"
    lines = [f"{stub}\0{served}/{model}/1/model.py\0region\0" for model in models]
    # Another server's.
    lines += [f"{stub}\0/elsewhere/models/{model}/1/model.py\0region\0" for model in models]
    lines += [
        f"{triton}/bin/tritonserver\0--model-repository={repository}\0--http-port={port}\0"
        for port, repository in (servers or {}).items()
    ]
    for number, line in enumerate([*lines, "", "bash\0"]):
        (folder / str(number)).mkdir(parents=True)
        (folder / str(number) / "cmdline").write_text(line)
    return folder


def test_the_loss_of_one_of_two_stubs_is_unhealthy_although_the_other_answers(
    server, repository, tmp_path
):
    alive = ("nugraph2", "nugraph2", "nugraph3", "nugraph2_cpu")
    processes = list_processes(tmp_path / "proc", *alive)
    with pytest.raises(UnhealthyError, match=r"^nugraph3: 1 of its 2 processes are gone$"):
        check_repository(server, repository, processes)


def test_stubs_are_those_of_the_repository_that_the_server_has_been_given(
    server, triton, repository, tmp_path
):
    """With limits of its own, an image serves a copy; another server may serve the image's."""
    copy = "/tmp/numl-models-aB3xYz"
    servers = {triton.port: f"{copy}/", triton.port + 1: "/elsewhere/models", 1: str(tmp_path)}
    alive = ("nugraph2", "nugraph2", "nugraph3")
    processes = list_processes(tmp_path / "proc", *alive, served=copy, servers=servers)
    with pytest.raises(UnhealthyError, match=r"^nugraph3: 1 of its 2 processes are gone$"):
        check_repository(server, repository, processes)


@pytest.mark.parametrize("is_seen", [True, False])
def test_stubs_of_a_repository_just_below_the_root_are_counted(server, triton, tmp_path, is_seen):
    servers = {triton.port: "/models"} if is_seen else {}
    processes = tmp_path / "proc"
    list_processes(processes, "nugraph3", served="/models", servers=servers)
    if not is_seen:
        shutil.rmtree(processes / "1")  # the other server's
    told = judging._loss(server, Path("/models/nugraph3/1"), processes)
    assert told == "1 of its 2 processes are gone"


def test_stubs_are_counted_for_each_gpu(server, triton, repository, tmp_path):
    triton.groups = [{"count": 1, "gpus": [0, 1]}]
    processes = list_processes(tmp_path / "proc", *["nugraph2", "nugraph3"] * 2)
    assert check_repository(server, repository, processes) == ("nugraph2", "nugraph3")


def test_no_server_is_unhealthy(triton, repository, capsys):
    assert main(["--port", "1", str(repository)]) == 1
    out = capsys.readouterr().out
    assert out.startswith("unhealthy: no answer from 127.0.0.1 port 1: ")
    assert "refused" in out


def test_no_models_are_unhealthy(triton, tmp_path, capsys):
    assert ask(triton, tmp_path) == 1
    assert capsys.readouterr().out == f"unhealthy: {tmp_path} has no models yet\n"


def test_it_waits_for_models_that_another_program_brings(triton, repository, capsys):
    hidden = repository.rename(repository.with_name("hidden"))
    repository.mkdir()

    def bring() -> None:
        for model in hidden.iterdir():
            model.rename(repository / model.name)

    threading.Timer(0.5, bring).start()
    assert ask(triton, repository, "--wait", "60") == 0
    assert capsys.readouterr().out.startswith("healthy: ")


def test_of_two_versions_the_one_that_answers_is_compared(triton, repository, capsys):
    for model in ("nugraph2", "nugraph3"):
        shutil.copytree(repository / model / "1", repository / model / "2")
        write_golden(
            repository / model / "2" / "golden.npz",
            GoldenEvent(random_event(0, HITS).tensors(), {"x_filter_u": np.ones(HITS, np.float32)}),
        )
    triton.versions = ["1"]
    assert ask(triton, repository) == 0
    triton.versions = ["1", "2"]
    triton.answer = {"x_filter_u": np.ones(HITS, np.float32)}
    assert ask(triton, repository) == 0
    assert capsys.readouterr().out.count("healthy: nugraph2, nugraph3 gave") == 2


def test_it_waits_for_a_server_that_does_not_answer_yet(triton, repository, capsys):
    triton.silent = 3
    assert ask(triton, repository, "--wait", "60") == 0
    assert triton.silent == 0
    assert capsys.readouterr().out.count("\n") == 1


def test_a_model_that_failed_to_load_is_named_and_not_waited_for(triton, repository, capsys):
    triton.ready["nugraph3"] = False
    started = time.monotonic()
    assert ask(triton, repository, "--wait", "3600") == 1
    assert time.monotonic() - started < 1800
    assert capsys.readouterr().out == "unhealthy: nugraph3: not ready\n"
