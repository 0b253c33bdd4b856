"""Models of PyTorch as people have them: described by running them once, then run again."""

import json
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numl_serving.ported import PortingError, network_in
from numl_serving.porting import describe, main, write_weights

from numl_formats.golden import read_golden

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(3, 2)

    def forward(self, hits, scale):
        return {"scores": self.linear(hits) * scale, "total": hits.sum()}
"""
HITS = {"name": "hits", "datatype": "FP32", "dims": [-1, 3]}
SCALE = {"name": "scale", "datatype": "FP32", "dims": [1]}
SCORES = {"name": "scores", "datatype": "FP32", "dims": [-1, 2]}
TOTAL = {"name": "total", "datatype": "FP32", "dims": [1]}  # a single number


@pytest.fixture
def net(tmp_path, monkeypatch):
    """The class, of a module that no other test has imported."""
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    torch.manual_seed(1)
    yield __import__("net").Net().eval()
    sys.modules.pop("net", None)


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "example.npz"
    np.savez(path, hits=np.ones((5, 3), np.float32), scale=np.array([2], np.float32))
    return path


def test_an_exported_program_has_an_example_names_and_sizes_that_vary(tmp_path, net):
    rows = torch.export.Dim("rows")
    arguments = (torch.ones(5, 3), torch.ones(1))
    program = torch.export.export(net, arguments, dynamic_shapes=({0: rows}, None))
    torch.export.save(program, tmp_path / "model.pt2")
    assert describe(tmp_path, None, None) == {"input": [HITS, SCALE], "output": [SCORES, TOTAL]}
    golden = read_golden(tmp_path / "golden.npz")
    assert golden.inputs["hits"].shape == (5, 3)
    assert golden.outputs["total"].tolist() == [15]
    answer = network_in(tmp_path, None)({"hits": np.ones((7, 3), np.float32), "scale": np.ones(1)})
    np.testing.assert_allclose(answer["scores"][:5], golden.outputs["scores"], rtol=1e-5)


class Weighted(torch.nn.Module):
    """As PyTorch Geometric's layers are: with optional tensors, and settings that are none."""

    def forward(self, hits, weight=None, scale=1.0, mode="sum"):
        total = hits.sum(0) if weight is None else weight @ hits
        return total * scale if mode == "sum" else total


def test_an_exported_program_keeps_what_it_was_exported_with_besides_tensors(tmp_path):
    program = torch.export.export(Weighted(), (torch.ones(5, 3), None, 2.0), {"mode": "sum"})
    torch.export.save(program, tmp_path / "model.pt2")
    (hits,) = describe(tmp_path, None, None)["input"]
    assert hits == {"name": "hits", "datatype": "FP32", "dims": [5, 3]}
    answer = network_in(tmp_path, None)({"hits": np.ones((5, 3), np.float32)})
    assert answer["output"].tolist() == [10, 10, 10]


def test_a_model_that_takes_nothing_is_refused(tmp_path):
    class Constant(torch.nn.Module):
        def forward(self):
            return torch.ones(3)

    torch.export.save(torch.export.export(Constant(), ()), tmp_path / "model.pt2")
    with pytest.raises(PortingError, match="it takes no tensor"):
        describe(tmp_path, None, None)
    assert not (tmp_path / "golden.npz").exists()


def test_a_class_gets_its_weights_without_unpickling_and_the_sizes_of_its_example(
    tmp_path, net, example
):
    torch.save({"state_dict": net.state_dict(), "epoch": 3}, tmp_path / "net.ckpt")
    write_weights(tmp_path / "net.ckpt", tmp_path / "weights.safetensors")
    found = describe(tmp_path, "net:Net", example)
    assert found["input"] == [{**HITS, "dims": [5, 3]}, SCALE]
    assert found["output"] == [{**SCORES, "dims": [5, 2]}, TOTAL]
    wanted = net(torch.ones(5, 3), torch.tensor([2.0]))["scores"].detach().numpy()
    np.testing.assert_array_equal(read_golden(tmp_path / "golden.npz").outputs["scores"], wanted)


def bad(arguments="self", linear=3):
    return f"""
class Bad(Net):
    def __init__({arguments}):
        super().__init__()
        self.linear = torch.nn.Linear({linear}, 2)
"""


def answering(value):
    return f"class Bad(Net):\n    def forward(self, hits):\n        return {value}\n"


AS_IT_IS = "Bad = Net"
ANSWER = "it cannot be compared with its own answer: output output is "
TENSORS = ", not a tensor\nreturn a tensor, a tuple of tensors, or a dict of them"


@pytest.mark.parametrize(
    ("code", "shapes", "said"),
    [
        ("", {}, "net has no Bad: AttributeError: module 'net' has no attribute 'Bad'"),
        (bad("self, size"), {}, "Bad() fails: TypeError: __init__() missing 1 required positional"),
        (bad(linear=4), {}, "the weights do not fit Bad: RuntimeError: Error(s) in loading state"),
        (AS_IT_IS, {"hits": (5, 3)}, "forward takes hits, scale; the example has hits"),
        (
            AS_IT_IS,
            {"hits": (5, 4), "scale": (1,)},
            "it fails for hits float32 [5, 4], scale float32 [1]: RuntimeError: mat1 and mat2",
        ),
        (answering("hits, None"), {"hits": 3}, f"output output_1 is a NoneType{TENSORS}"),
        (answering("{'a': [hits]}"), {"hits": 3}, f"output a is a list{TENSORS}"),
        (answering("7"), {"hits": 3}, f"output output is a int{TENSORS}"),
        # No start of a server could compare these with anything.
        (answering("torch.log(hits - 1)"), {"hits": 3}, f"{ANSWER}not finite"),
        (answering("torch.rand_like(hits)"), {"hits": 3}, f"{ANSWER}off by"),
    ],
)
def test_what_does_not_fit_is_told_with_its_cause(tmp_path, net, example, code, shapes, said):
    (tmp_path / "net.py").write_text(NET + code)
    sys.modules.pop("net")
    write_weights(_saved(net.state_dict(), tmp_path), tmp_path / "weights.safetensors")
    np.savez(example, **{name: np.ones(shape, np.float32) for name, shape in shapes.items()})
    with pytest.raises(PortingError) as caught:
        describe(tmp_path, "net:Bad", example)
    told = f"{caught.value}\n{caught.value.remedy}"
    assert told.replace("Bad.__init__", "__init__").startswith(said)
    assert caught.value.remedy
    assert not (tmp_path / "golden.npz").exists()


@pytest.fixture
def onnx(tmp_path, monkeypatch):
    """What ONNX Runtime says of a file, and does with it: for a test to play."""
    session = SimpleNamespace()
    runtime = SimpleNamespace(
        SessionOptions=SimpleNamespace, InferenceSession=lambda *_, **__: session, __version__="1"
    )
    monkeypatch.setitem(sys.modules, "onnxruntime", runtime)
    (tmp_path / "model.onnx").touch()
    return session


def test_texts_reach_onnx_runtime_as_texts(tmp_path, onnx):
    """It makes a text of anything else, and of b'cat' one with a b and quotes."""
    onnx.get_outputs = lambda: [SimpleNamespace(name="y")]
    onnx.run = lambda _, arrays: [arrays["words"]]
    network, words = network_in(tmp_path, None), [["cat", "caf\u00e9"]]
    encoded = [[word.encode() for word in row] for row in words]
    for array in (np.array(encoded, object), np.array(encoded), np.array(words)):
        answer = network({"words": array})["y"]
        assert (answer.dtype, answer.tolist()) == (object, words)


@pytest.fixture
def undeclared(onnx):
    """A file that doubles hits and adds them up, and declares no shape of anything."""

    def tensor(name):
        return SimpleNamespace(name=name, type="tensor(float)", shape=[])

    onnx.get_inputs = lambda: [tensor("hits")]
    onnx.get_outputs = lambda: [tensor("scores"), tensor("total")]
    onnx.run = lambda _, arrays: [arrays["hits"] * 2, arrays["hits"].sum()]


def test_an_onnx_tensor_without_a_shape_has_the_dimensions_of_the_example(tmp_path, undeclared):
    np.savez(tmp_path / "example.npz", hits=np.ones((5, 3), np.float32))
    of_any_size = {"datatype": "FP32", "dims": [-1, -1]}
    assert describe(tmp_path, None, tmp_path / "example.npz") == {
        "input": [{"name": "hits", **of_any_size}],
        "output": [{"name": "scores", **of_any_size}, TOTAL],
    }


def test_an_onnx_tensor_without_a_shape_needs_an_example(tmp_path, undeclared):
    with pytest.raises(PortingError, match="input hits has no dimensions") as caught:
        describe(tmp_path, None, None)
    assert caught.value.remedy.endswith("if it takes any, --example FILE.npz")


def test_a_module_that_cannot_be_imported_is_told_and_weights_that_are_none(
    tmp_path, net, example, capsys
):
    (tmp_path / "net.py").write_text("import their_software")
    sys.modules.pop("net")
    words = [str(tmp_path), "--class", "net:Net", "--example", str(example), "--weights"]
    assert main([*words, str(_saved(net.state_dict(), tmp_path))]) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["error"].startswith("net cannot be imported: ModuleNotFoundError: No module named")
    assert told["remedy"] == (
        "modules of yours: make it a package, net/, that holds what it imports; "
        "other packages: docs/port.md"
    )
    for wrong in (b"nothing", torch.ones(3)):
        assert main([*words, str(_saved(wrong, tmp_path))]) == 1
        told = json.loads(capsys.readouterr().out)
        assert told["error"].startswith("net.pt has no state dictionary: ")


@pytest.mark.parametrize("made", ["Net", "Nett"])
def test_what_is_told_has_a_line_of_its_own_whatever_the_model_prints(
    tmp_path, net, example, capsys, made
):
    (tmp_path / "net.py").write_text(f"print('loading...', end=''){NET}")
    sys.modules.pop("net")
    weights = str(_saved(net.state_dict(), tmp_path))
    words = [str(tmp_path), "--class", f"net:{made}", "--example", str(example)]
    main([*words, "--weights", weights])
    printed, told = capsys.readouterr().out.splitlines()
    assert printed == "loading..."
    assert [*json.loads(told)] == (["input", "output"] if made == "Net" else ["error", "remedy"])


def test_a_package_may_import_what_it_holds(tmp_path, net, example):
    weights = _saved(net.state_dict(), tmp_path)
    (tmp_path / "net").mkdir()
    (tmp_path / "net.py").rename(tmp_path / "net" / "layers.py")
    (tmp_path / "net" / "__init__.py").write_text("from .layers import Net")
    for module in ("net", "net.layers"):
        sys.modules.pop(module, None)
    write_weights(weights, tmp_path / "weights.safetensors")
    assert describe(tmp_path, "net:Net", example)["input"] == [{**HITS, "dims": [5, 3]}, SCALE]


@pytest.mark.parametrize("module", ["safetensors", "queue"])
def test_a_module_that_the_environment_has_too_is_refused(tmp_path, example, module):
    (tmp_path / f"{module}.py").write_text(NET)
    with pytest.raises(PortingError) as caught:
        describe(tmp_path, f"{module}:Net", example)
    assert str(caught.value) == f"its environment has another module {module}"
    assert caught.value.remedy == "rename yours"


def test_a_type_that_triton_does_not_have_is_named_before_anything_is_written(tmp_path, net):
    class Twice(torch.nn.Module):
        def forward(self, x):
            return x + x

    program = torch.export.export(Twice(), (torch.ones(2, dtype=torch.complex64),))
    torch.export.save(program, tmp_path / "model.pt2")
    with pytest.raises(PortingError, match="input x is complex64, a type that Triton does not"):
        describe(tmp_path, None, None)
    assert not (tmp_path / "golden.npz").exists()


def _saved(what, folder):
    path = folder / "net.pt"
    path.write_bytes(what) if isinstance(what, bytes) else torch.save(what, path)
    return path
