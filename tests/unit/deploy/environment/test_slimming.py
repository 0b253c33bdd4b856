"""What is left out of an environment, and what is compiled beforehand."""

import pytest

from deploy.environment.slimming import is_compiled, is_needed, largest_parts

SITE = "lib/python3.11/site-packages"
STDLIB = "lib/python3.11"

IMPORTED = (
    f"{SITE}/numpy/__init__.py",
    f"{SITE}/numpy/testing/__init__.py",
    f"{SITE}/numpy/core/_multiarray_tests.cpython-311-x86_64-linux-gnu.so",
    f"{SITE}/torch/bin/torch_shm_manager",
    f"{SITE}/torch/testing/__init__.py",
    f"{SITE}/torch/testing/_internal/logging_tensor.py",
    f"{SITE}/torch/lib/libtorch_cpu.so",
    f"{SITE}/nvidia/cu13/lib/libcublas.so.13",
    f"{SITE}/turtle_library/__init__.py",
    f"{SITE}/test/test_os.py",
    f"{SITE}/torch-2.13.0+cpu.dist-info/licenses/LICENSE",
    f"{SITE}/sklearn/datasets/_base.py",
    f"{STDLIB}/os.py",
    f"{STDLIB}/unittest/case.py",
    f"{STDLIB}/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so",
    f"{SITE}/numl_serving/libqhull_r.so.8.0",
    f"{SITE}/numl_serving/libnuml.so",
    "lib/libmpi.so.12",
    "lib/libpython3.11.so.1.0",
    "bin/python3.11",
    "bin/torchrun",
    "etc/conda/activate.d/x.sh",
)
NEVER_LOADED = (
    f"{SITE}/skimage/__init__.pyi",
    f"{SITE}/pandas/tests/frame/test_api.py",
    f"{SITE}/scipy/io/tests/data/Transparent Busy.ani",
    f"{SITE}/torch/bin/protoc",
    f"{SITE}/torch/include/ATen/ATen.h",
    f"{SITE}/torch/lib/libtorchbind_test.so",
    f"{SITE}/numpy/core/lib/libnpymath.a",
    f"{SITE}/triton/_C/libtriton.so",
    f"{SITE}/nvidia/cu13/include/cublas.h",
    f"{SITE}/nvidia/cu13/bin/ptxas",
    f"{SITE}/idna-3.20.dist-info/RECORD",
    f"{SITE}/plotly/package_data/plotly.min.js",
    "share/man/man1/ttx.1",
    "include/mpi.h",
    "bin/mpiexec.hydra",
    "lib/libmpi_abi.so.1",
)
OF_PYTHON = (
    f"{STDLIB}/__pycache__/os.cpython-311.pyc",
    f"{STDLIB}/json/__pycache__/__init__.cpython-311.pyc",
    f"{STDLIB}/test/test_os.py",
    f"{STDLIB}/ensurepip/_bundled/pip-23.2.1-py3-none-any.whl",
    f"{STDLIB}/turtle.py",
    f"{STDLIB}/lib-dynload/_tkinter.cpython-311-x86_64-linux-gnu.so",
)


@pytest.mark.parametrize(
    ("paths", "in_slim", "in_whole"),
    [(IMPORTED, True, True), (NEVER_LOADED, False, True), (OF_PYTHON, False, False)],
    ids=["what inference or NuGraph imports", "what no inference loads", "of the interpreter"],
)
def test_what_is_needed_stays_and_in_a_whole_environment_all_of_the_packages(
    paths, in_slim, in_whole
):
    for path in paths:
        found = is_needed(path), is_needed(path, whole=True)
        assert found == (in_slim, in_whole), path


@pytest.mark.parametrize(
    ("path", "compiled"),
    [
        (f"{STDLIB}/json/__init__.py", True),
        (f"{STDLIB}/distutils/core.py", False),
        (f"{SITE}/torch/nn/functional.py", True),
        (f"{SITE}/torch/_dynamo/config.py", False),
        (f"{SITE}/torch/_dispatch/python.py", True),
        (f"{SITE}/torch/distributed/constants.py", True),
        (f"{SITE}/torch/distributed/fsdp/api.py", False),
        (f"{SITE}/scipy/spatial/_kdtree.py", False),
        (f"{SITE}/numl_serving/check.py", True),
        (f"{SITE}/pandas/core/frame.py", False),
        (f"{SITE}/torch_geometric/nn/__init__.py", False),
    ],
)
def test_modules_of_the_serving_path_are_compiled(path, compiled):
    assert is_compiled(path) is compiled


def test_the_largest_parts_are_packages_and_folders(tmp_path):
    for name, size in {
        f"{SITE}/torch/lib/libtorch.so": 50,
        f"{SITE}/torch/nn/x.py": 5,
        f"{SITE}/six.py": 7,
        f"{STDLIB}/json/x.py": 20,
        f"{STDLIB}/os.py": 3,
        "lib/libmpi.so.12": 30,
        "bin/python3.11": 10,
        "bin/tqdm": 1,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x" * size)
    (tmp_path / "lib" / "libmpi.so").symlink_to("libmpi.so.12")
    assert largest_parts(tmp_path, 5) == [
        (f"{SITE}/torch", 55),
        ("lib/libmpi.so.12", 30),
        (f"{STDLIB}/json", 20),
        ("bin", 11),
        (f"{SITE}/six.py", 7),
    ]
