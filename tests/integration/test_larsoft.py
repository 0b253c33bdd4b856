"""LArSoft's clients need nothing but an address: their calls, in their order."""

import os
import signal
from typing import Any

import grpc
import numpy as np
import pytest

from tests.kit import until
from tests.larsoft import Sonic, demo_events, slices


def _address(answer: dict[str, Any]) -> str:
    return f"127.0.0.1:{answer['ports']['grpc']}"


@pytest.mark.parametrize("model", ["nugraph2", "nugraph2_cpu", "nugraph3"])
def test_a_job_with_a_whole_event_and_one_of_many_slices(demo, model):
    job = Sonic(_address(demo), model=model)
    outputs = job.begin_job()
    event = demo_events()[0]
    planes = np.bincount(event["hit_table_local_plane"], minlength=3).tolist()
    [whole] = job.produce(event)
    assert set(whole) == set(outputs)
    assert [whole[f"x_filter_{plane}"] for plane in "uvy"] == [[hits] for hits in planes]
    answers = job.produce(*slices(event, 10))
    for plane, hits in zip("uvy", planes, strict=True):
        assert sum(answer[f"x_semantic_{plane}"][0] for answer in answers) == hits
    job.end_job()


def test_a_model_that_the_server_lacks_is_told_before_the_first_event(demo):
    job = Sonic(_address(demo), model="nugraph4")
    with pytest.raises(grpc.RpcError, match=r"NOT_FOUND[\s\S]*unknown model: 'nugraph4'"):
        job.begin_job()


def test_a_job_that_may_try_twice_outlives_a_restart(kit, single):
    job = Sonic(_address(single), tries=2)
    job.begin_job()
    event = demo_events()[0]
    job.produce(event)
    os.kill(single["server"]["pid"], signal.SIGKILL)
    until(lambda: kit.noted("single")["server"] != single["server"], "the next server")
    [answer] = job.produce(event)
    assert answer["x_semantic_u"][1] == 7
