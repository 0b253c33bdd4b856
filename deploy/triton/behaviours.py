"""What Triton does differently from some release on: the one table of it.

Code asks `TritonRelease.has` for the rows that it needs; docs/triton-releases.md shows them all.
Which flags a server knows is not in it: the server itself is asked.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """A change in Triton.

    Attributes:
        release: The first of NVIDIA's releases that has it (``25.08``).
        server: The version of the server in that release.
        change: What it is, in Markdown.
        kit: What the kit does about it, in Markdown.
        source: Where it is written, or on which release it was seen.
    """

    release: str
    server: tuple[int, int]
    change: str
    kit: str
    source: str


NUMPY_2 = Behaviour(
    "24.11",
    (2, 52),
    "stubs send arrays of numpy 2; before, they sent empty ones",
    "environments with numpy 2 are accepted",
    "python_backend, pull request 371: pybind11 2.12",
)
CANCELLED = Behaviour(
    "25.04",
    (2, 57),
    "a request that its client gives up just as it is answered no longer crashes the server",
    "the supervisor's log names this cause; see [load](load.md#deadlines)",
    "server, pull requests 7840 and 8078; the crash seen on 24.10",
)
HTTP_SIZE = Behaviour(
    "25.06",
    (2, 59),
    "JSON, and what is decompressed, may have 64 MiB over HTTP",
    "nothing: 100,000 hits as JSON take less than 10 MB",
    "server, flag http-max-input-size; seen on 2.73.0dev",
)
NO_ACTIVATE = Behaviour(
    "25.08",
    (2, 60),
    "`bin/activate` is no longer sourced: only `PATH`, `LD_LIBRARY_PATH` and `VIRTUAL_ENV` are set",
    "`up` warns of scripts in `etc/conda/activate.d`",
    "python_backend, src/pb_env.cc",
)
DEAD_STUB = Behaviour(
    "25.12",
    (2, 64),
    "a dead model process makes its model unready; from 26.04 on the server, too",
    "nothing: no release replaces it, so the supervisor does, and finds it by its process",
    "python_backend; seen on 26.07 and 2.73.0dev",
)
HISTOGRAMS = Behaviour(
    "26.01",
    (2, 65),
    "latency histograms for all models",
    "nothing: dashboards and alerts use metrics that every release has",
    "core, src/metric_model_reporter.cc",
)
EXACT_SIZES = Behaviour(
    "26.03",
    (2, 67),
    "shapes with negative sizes, or of more elements than 64 bits count, are refused",
    "the guard in the kit's models is off; the one in the environment stays, and has nothing to do",
    "common, pull request 150; core, 475; seen on 26.07 and 2.73.0dev",
)
IS_READY = Behaviour(
    "26.03",
    (2, 67),
    "a model may have a method `is_ready`, which its readiness asks; from 26.04 on the server's, "
    "too",
    "nothing: ready means that an event has had the right answer, which is too dear for a probe",
    "python_backend, src/python_be.cc; seen on 2.73.0dev",
)
CLIENT_SHM = Behaviour(
    "26.04",
    (2, 68),
    "clients' shared memory needs the flag `allow-client-shm`",
    "`--shared-memory` sets it where the server lists the flag",
    "server, src/command_line_parser.cc; seen on 26.07 and 2.73.0dev",
)
CRAFTED_HTTP = Behaviour(
    "26.05",
    (2, 69),
    "JSON is parsed without recursion, in at most 65,536 chunks: neither its depth nor its chunks "
    "crash the server",
    "nothing: 26.06 to 26.08 end at an `Inference-Header-Content-Length` of more than 32 bits, and "
    "100,000 parameters in JSON block any release, so HTTP stays on 127.0.0.1",
    "server, src/http_server.cc, pull request 8925; seen on 2.73.0dev",
)
STRICT_ARCHIVES = Behaviour(
    "26.06",
    (2, 70),
    "packed environments with `..`, absolute paths or files written through links are refused",
    "nothing: those that `numlkit build` packs have none",
    "python_backend, src/pb_env.cc",
)
BEHAVIOURS = (
    *(NUMPY_2, CANCELLED, HTTP_SIZE, NO_ACTIVATE, DEAD_STUB, HISTOGRAMS),
    *(EXACT_SIZES, IS_READY, CLIENT_SHM, CRAFTED_HTTP, STRICT_ARCHIVES),
)


def behaviours_page() -> str:
    rows = [f"| {b.release} | {b.change} | {b.kit} | {b.source} |" for b in BEHAVIOURS]
    return "\n".join(("| from | change | in the kit | source |", "|---|---|---|---|", *rows)) + "\n"
