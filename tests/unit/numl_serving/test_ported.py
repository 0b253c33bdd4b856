"""Models of PyTorch as people have them: described by running them once, then run again."""

import sys

import numpy as np
import pytest
import torch
from numl_serving.ported import describe, main, network_in, write_weights

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


def test_what_does_not_fit_is_told_in_one_line(tmp_path, net, example, capsys):
    torch.save(net.state_dict(), tmp_path / "net.pt")
    np.savez(example, hits=np.ones((5, 3), np.float32))
    words = [str(tmp_path), "--class", "net:Net", "--weights", str(tmp_path / "net.pt")]
    assert main([*words, "--example", str(example)]) == 1
    said = capsys.readouterr().out
    assert said == '{"error": "ValueError: forward takes hits, scale; the example has hits"}\n'
    (tmp_path / "net.pt").write_bytes(b"nothing")
    assert main([*words, "--example", str(example)]) == 1
    assert capsys.readouterr().out.startswith('{"error": "')
