"""Starts that fail by a model: a cause in one line, in time."""

import pytest

from deploy.engines import server
from tests.failed_start import GOOD_MODEL


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import ctypes\nraise OSError('libmpi.so.12: cannot open shared object file')\n",
         "lacks the library libmpi.so.12"),
        ("x = 1\n", "defines no class TritonPythonModel"),
        (GOOD_MODEL + "    def initialize(self, args):\n        import os; os._exit(3)\n",
         "its process died during initialisation"),
    ],
)  # fmt: skip
def test_a_broken_model_is_named(bench, code, said):
    assert said in bench.failure(bench.plan(environment=bench.environment, code=code)).cause


def test_a_model_that_never_ends_initialising_ends_at_the_deadline(bench):
    code = GOOD_MODEL + "    def initialize(self, args):\n        import time; time.sleep(600)\n"
    failure = bench.failure(bench.plan(environment=bench.environment, code=code), deadline=6)
    # On a busy host Triton may have given up such a stub before.
    given_up = "model echo: its process died during initialisation (exit, crash or out of memory)"
    assert failure.cause in ("not ready in time (waited for echo)", given_up)


def test_a_server_that_stops_starting_is_noticed_long_before_the_deadline(bench, monkeypatch):
    """As Triton does while it waits for a stub that it has given up; a sleeping model looks so."""
    monkeypatch.setattr(server, "_STILL_S", 3.0)
    code = GOOD_MODEL + "    def initialize(self, args):\n        import time; time.sleep(600)\n"
    failure = bench.failure(bench.plan(environment=bench.environment, code=code), once=True)
    assert isinstance(failure, server.GivenUpError)


def test_a_gpu_model_on_a_host_without_gpu_is_named(bench):
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL, kind="KIND_GPU")
    assert bench.failure(plan).cause == "model echo: a model needs a GPU and the server sees none"


def test_a_configuration_that_triton_refuses_is_named(bench):
    plan = bench.plan(environment=bench.environment, code=GOOD_MODEL)
    path = bench.folder / "repository" / "echo" / "config.pbtxt"
    path.write_text(path.read_text().replace("dims: -1", "dims: -7", 1))
    assert "echo" in bench.failure(plan).cause
