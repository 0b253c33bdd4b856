"""The gallery's entries as their tests ask them, and what their pages and Triton's counts say."""

from __future__ import annotations

import importlib.util
import re
import sys
import time
from contextlib import closing
from typing import Any
from urllib.request import urlopen

import numpy as np
import tritonclient.grpc as triton

from deploy.client.endpoint import Endpoint
from deploy.client.probe import answer_to
from deploy.client.transport import TritonTransport
from deploy.host.errors import RequestError
from deploy.host.paths import CHECKOUT
from tests.inputs import inputs_of
from tests.kit import SOON_S
from tests.programs import run_program

GALLERY = CHECKOUT / "gallery"


def ask(
    server: triton.InferenceServerClient, model: str, tensors: dict[str, np.ndarray]
) -> triton.InferResult:
    return server.infer(model, inputs_of(triton, tensors))


def outcome(
    served: dict[str, Any], model: str, tensors: dict[str, np.ndarray]
) -> dict[str, Any] | str:
    """Return a model's answer, as a golden file has it, or what the server says is wrong."""
    endpoint = Endpoint.parse(f"grpc://127.0.0.1:{served['ports']['grpc']}")
    with closing(TritonTransport(endpoint, timeout=60)) as transport:
        described = transport.describe(model)
        try:
            return answer_to(transport, described, tensors, decoupled=model == "hit_finder")
        except RequestError as error:
            raw: Any = error.__cause__
            return str(raw.message())


def run_client(model: str, served: dict[str, Any], *words: str) -> str:
    url = f"127.0.0.1:{served['ports']['grpc']}"
    command = [sys.executable, GALLERY / model / "client.py", "--url", url, *words]
    done = run_program(command)
    assert done.returncode == 0, done.stderr
    return done.stdout


def counts(server: triton.InferenceServerClient, model: str) -> tuple[int, int]:
    """Return how many inferences and runs of a model there were."""
    stats = server.get_inference_statistics(model).model_stats[0]
    return stats.inference_count, stats.execution_count


def assert_counted(
    server: triton.InferenceServerClient, before: dict[str, tuple[int, int]], wanted: dict[str, int]
) -> dict[str, int]:
    """Assert how many inferences there were since ``before``; return the runs that took.

    A client may have its answer before Triton counts the request.
    """

    def since(place: int) -> dict[str, int]:
        return {model: counts(server, model)[place] - before[model][place] for model in wanted}

    end = time.monotonic() + SOON_S
    while since(0) != wanted and time.monotonic() < end:
        time.sleep(0.1)
    assert since(0) == wanted
    return since(1)


def cached(server: triton.InferenceServerClient) -> tuple[int, int]:
    """Return how many answers came from the response cache, and how many did not."""
    stats = server.get_inference_statistics("sentence_cache").model_stats[0].inference_stats
    return stats.cache_hit.count, stats.cache_miss.count


def responses(served: dict[str, Any]) -> float:
    """Return how many responses hit_finder has sent, as the server's metrics have it."""
    with urlopen(f"http://127.0.0.1:{served['ports']['metrics']}/metrics") as answer:
        (count,) = re.findall(
            r'^model_responses_total{model="hit_finder",version="1"} (.*)$',
            answer.read().decode(),
            re.M,
        )
    return float(count)


def words() -> list[str]:
    spec = importlib.util.spec_from_file_location("sample", GALLERY / "ocr" / "sample.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.words())


def claimed(model: str) -> float:
    """Return the percentage in the gallery's table."""
    page = (CHECKOUT / "docs" / "gallery.md").read_text()
    (found,) = re.findall(rf"^\| \[{model}\]\(.*?\| ([\d.]+)%", page, re.M)
    return float(found)
