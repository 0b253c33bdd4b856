"""The phases of a start are read from the server's log."""

from deploy.triton.start import PHASES, InstanceStart, read_starts, slowest

LOG = """\
I1121 17:41:29.203112 13349 python_be.cc:1912] "TRITONBACKEND_ModelInstanceInitialize: nugraph3_0_0"
I1121 17:41:31.771265 13349 model.py:108] "nugraph3_0_0 ready 4.61 s after its server's start: \
process 0.31, interpreter 0.35, imports 3.10, weights 0.60, warm-up 0.25"
I1121 17:41:31.871265 13349 model.py:108] "my-model.v2_0_1 ready 3605.2 s after its server's \
start: process 3601.00, interpreter 0.20, imports 3.00, weights 1.00, warm-up 0.00"
"""


def instance_start(name: str, seconds: float, *phases: float) -> InstanceStart:
    return InstanceStart(name, seconds, dict(zip(PHASES, phases, strict=True)))


def test_every_instance_is_read_with_its_phases():
    assert read_starts(LOG) == (
        instance_start("nugraph3_0_0", 4.61, 0.31, 0.35, 3.10, 0.60, 0.25),
        instance_start("my-model.v2_0_1", 3605.2, 3601.0, 0.2, 3.0, 1.0, 0.0),
    )


def test_the_slowest_instance_is_told_in_one_line():
    assert slowest(read_starts(LOG)[:1]) == (
        "of these, nugraph3_0_0 took 4.61 s: process 0.31, interpreter 0.35, imports 3.10, "
        "weights 0.60, warm-up 0.25"
    )


def test_a_log_of_another_kind_tells_nothing():
    assert read_starts("Server ready after its server's start\n") == ()
