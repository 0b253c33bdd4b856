"""The messages are Triton 24.10's own; the integration tests provoke the causes for real."""

import pytest

from deploy.failures.table import TABLE, diagnose, last_words

LOADING = "E1121 model_lifecycle.cc:642] \"failed to load 'nugraph3' version 1: "


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            "E1121 main.cc] failed to start GRPC service: Unavailable - "
            "Socket '127.0.0.1:8001' already in use ",
            "127.0.0.1:8001 was taken by another program while the server started (GRPC)",
        ),
        (
            LOADING + "Internal: Failed to get the canonical path for /no/such/env.",
            "model nugraph3: its execution environment /no/such/env is not there",
        ),
        (
            LOADING + 'Internal: archive_read_open_filename() failed."',
            "a packed execution environment is not a tar or tar.gz archive",
        ),
        (
            LOADING + r"Internal: ValueError: bad weights\n\nAt:\n  /x/model.py(5): initialize\n",
            "model nugraph3 cannot be loaded: ValueError: bad weights",
        ),
        (
            "archive_read_data_block() failed with error code = -30",
            "a packed execution environment is cut off",
        ),
        (
            "archive_read_next_header() failed with error code = -30 Damaged tar archive",
            "a packed execution environment is damaged",
        ),
        (
            "archive_write_data_block() failed with error code = -25, Write failed",
            "/tmp is full: a packed execution environment is extracted there",
        ),
        (
            "Path /tmp/python_env_ab/0/bin/activate does not exist. The Python environment",
            "the execution environment has no /tmp/python_env_ab/0/bin/activate",
        ),
        (
            LOADING + "Internal: ModuleNotFoundError: No module named 'numpy'\n\nAt:\n",
            "the stub runs with an interpreter that has no numpy: not the execution environment's",
        ),
        (
            LOADING + "Internal: ModuleNotFoundError: No module named 'numl_serving'\n",
            "the execution environment lacks the Python package numl_serving, "
            "which a model imports",
        ),
        (
            "OSError: libmpi.so.12: cannot open shared object file: No such file or directory",
            "the execution environment lacks the library libmpi.so.12",
        ),
        (
            LOADING + "Internal: AttributeError: module '1.model' has no attribute "
            "'TritonPythonModel'",
            "a model.py defines no class TritonPythonModel",
        ),
        (
            LOADING + "Internal: Stub process 'nugraph3_0_0' is not healthy.\"",
            "model nugraph3: its process ended while it initialised (exit, crash or out of memory)",
        ),
        (
            LOADING + "Invalid argument: instance group nugraph3_0 of model nugraph3 has kind "
            "KIND_GPU but no GPUs are available",
            "a model wants a GPU and the server sees none",
        ),
        (
            LOADING + "Internal: Unable to initialize shared memory key 'x' to requested size: "
            "No space left on device",
            "/dev/shm is too small for the model instances (1 MB for each at load)",
        ),
        (
            "[500] Failed to increase the shared memory pool size for key 'x' to 2 bytes.",
            "/dev/shm is full: a request's tensors do not fit",
        ),
        (
            LOADING + "Internal: ModelFilesError: wrong execution environment: /e is for Python "
            "3.12.1, this is Python 3.11.7: check EXECUTION_ENV_PATH and that the stub's",
            "model nugraph3 does not run in its execution environment: "
            "/e is for Python 3.12.1, this is Python 3.11.7",
        ),
        (
            "output y is empty where its shape is [3, 5], as when it has numpy 2",
            "output y is empty where its shape is [3, 5], as when it has numpy 2",
        ),
        (
            "/x/triton_python_backend_stub: error while loading shared libraries: "
            "libpython3.11.so.1.0: cannot open shared object file: No such file or directory",
            "the stub cannot find libpython3.11.so.1.0 of the execution environment",
        ),
    ],
)
def test_triton_s_words_become_a_cause_in_one_line(text: str, cause: str) -> None:
    found = diagnose(f"I1121 something else\n{text}\nI1121 and more\n")
    assert found is not None
    assert found.cause == cause
    assert found.remedy
    assert "\n" not in found.cause + found.remedy


def test_a_healthy_log_has_no_diagnosis() -> None:
    assert diagnose("I1121 \"successfully loaded 'nugraph3'\"\nI1121 Started HTTPService\n") is None


def test_every_row_has_a_remedy_that_is_not_its_cause() -> None:
    for row in TABLE:
        assert row.remedy
        assert row.remedy != row.cause


def test_last_words_are_those_that_say_something() -> None:
    assert last_words("first\nlast word\n+----+\n\n") == "last word"
    assert last_words("") == "it said nothing"
