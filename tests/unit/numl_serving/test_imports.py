"""An instance on a CPU imports numpy and the native library, nothing of what trains networks."""

import subprocess
import sys
from pathlib import Path

import numl_serving
from small_models import write_model

SOURCE = str(Path(numl_serving.__file__).parents[1])
REFUSING = f"""
import sys, types
sys.path.insert(0, {SOURCE!r})
sys.modules["triton_python_backend_utils"] = types.ModuleType("backend")  # as in a stub
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "scipy", "h5py", "pandas", "sklearn", "nugraph"):
            raise ImportError(f"{{name}} is not needed here")
sys.meta_path.insert(0, Refuse())
"""


def python(code: str) -> str:
    command = [sys.executable, "-c", REFUSING + code]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def test_neither_torch_nor_what_reads_data_sets_is_imported():
    modules = ("triton", "check", "runtime", "health", "watch", "importer", "checkpoint", "native")
    python("\n".join(f"import numl_serving.{module}" for module in modules))


def test_a_model_answers_without_them(tmp_path):
    write_model(tmp_path)
    said = python(
        "from pathlib import Path\n"
        "from numl_serving.configuration import warm_up_event\n"
        "from numl_serving.runtime import Runtime\n"
        f"folder = Path({str(tmp_path)!r})\n"
        "runtime = Runtime.load(folder)\n"
        "print(runtime.infer(warm_up_event(folder, runtime.card))['e_evt'].shape)\n"
    )
    assert said == "(1, 4)\n"
