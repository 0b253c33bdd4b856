"""The line that says how long an instance took to start."""

import ctypes
import re

from numl_serving.startup import Startup

_PR_SET_NAME, _PR_GET_NAME = 15, 16  # of linux/prctl.h


def test_a_process_whose_name_is_no_text_is_timed_like_any_other():
    system, name = ctypes.CDLL(None), ctypes.create_string_buffer(16)
    system.prctl(_PR_GET_NAME, name)
    system.prctl(_PR_SET_NAME, b"\xff) (")
    try:
        said = str(Startup())
    finally:
        system.prctl(_PR_SET_NAME, name)
    assert re.match(r"ready \d+\.\d\d s after its server's start: process \d+\.\d\d, ", said)
