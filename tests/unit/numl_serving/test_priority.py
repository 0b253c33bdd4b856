"""Which threads of a server give way to its models' processes."""

import os
import subprocess
import sys

from numl_serving.inherited import STUB
from numl_serving.priority import LOWER_BY, lower_endpoints

# A server: a thread, the process of a model, the endpoints' threads, the process of another model.
_SERVER = """
import os, subprocess, sys, threading, time
def nice(number=0):
    return os.getpriority(os.PRIO_PROCESS, number)
def thread():
    time.sleep(0.05)  # starts are told apart by hundredths of a second
    made = threading.Thread(target=threading.Event().wait, daemon=True)
    made.start()
    return made.native_id
def model():
    time.sleep(0.05)
    words = [sys.executable, "-c", sys.argv[1], sys.argv[2]]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
def serve(model):
    return int(model.communicate("an event")[0])
os.nice(2)
pool, models, endpoints = thread(), [model(), model()], [thread(), thread()]
print(*map(serve, models), nice(), nice(pool), *map(nice, endpoints))
print(serve(model()), nice(), nice(pool), *map(nice, endpoints), nice(thread()))
"""
_MODEL = """
import os, sys
from pathlib import Path
from numl_serving.priority import lower_endpoints
sys.stdin.read()
lower_endpoints(Path(sys.argv[1]))
print(os.getpriority(os.PRIO_PROCESS, 0))
"""


def serve(executable):
    """Return how much lower priorities are than that of who starts the server."""
    words = [sys.executable, "-c", _SERVER, _MODEL, str(executable)]
    done = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    own = os.getpriority(os.PRIO_PROCESS, 0)
    return [[int(nice) - own for nice in line.split()] for line in done.splitlines()]


def test_endpoints_give_way_to_models_once_and_stay_so_when_a_model_is_started_again(tmp_path):
    (tmp_path / STUB).touch()
    (tmp_path / "exe").symlink_to(tmp_path / STUB)
    low = 2 + LOWER_BY
    assert serve(tmp_path / "exe") == [[2, 2, 2, 2, low, low], [2, 2, 2, low, low, 2]]


def test_any_other_process_leaves_its_parent_alone(tmp_path):
    (tmp_path / "python").touch()
    (tmp_path / "exe").symlink_to(tmp_path / "python")
    assert serve(tmp_path / "exe") == [[2, 2, 2, 2, 2, 2], [2, 2, 2, 2, 2, 2]]
    lower_endpoints()
