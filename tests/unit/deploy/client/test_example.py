"""What a site's client.py gives as its model's example, and what is said if it gives none."""

import numpy as np
import pytest

from deploy.client.example import example_inputs
from deploy.host.errors import RepositoryError


def test_an_example_is_what_inputs_returns_and_nothing_is_left_in_the_folder(tmp_path):
    code = 'import numpy as np\ndef inputs():\n    return {"x": np.ones(2), "y": [1]}\n'
    (tmp_path / "client.py").write_text(code + 'if __name__ == "__main__":\n    raise SystemExit\n')
    found = example_inputs(tmp_path)
    assert {name: array.tolist() for name, array in found.items()} == {"x": [1, 1], "y": [1]}
    assert isinstance(found["y"], np.ndarray)
    assert [path.name for path in tmp_path.iterdir()] == ["client.py"]


def test_a_client_may_import_modules_beside_it_of_whatever_name(tmp_path):
    for number in (1, 2):
        model = tmp_path / str(number)
        model.mkdir()
        (model / "sample.py").write_text(f"X = [{number}]\n")
        (model / "client.py").write_text('import sample\ndef inputs(): return {"x": sample.X}\n')
        assert example_inputs(model)["x"].tolist() == [number]
        assert not (model / "__pycache__").exists()


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (None, "no such file"),
        ("import nonesuch", "fails: ModuleNotFoundError: No module named 'nonesuch'"),
        ("def other(): ...", "fails: KeyError: 'inputs'"),
        ("def inputs(): return {}", "inputs() returns no tensor"),
        ("raise SystemExit('bad words')", "inputs() fails: SystemExit: bad words"),
        ("def inputs(): return 1", "fails: TypeError: 'int' object is not iterable"),
    ],
)
def test_a_client_without_an_example_is_named_in_one_line(tmp_path, code, says):
    if code is not None:
        (tmp_path / "client.py").write_text(code)
    with pytest.raises(RepositoryError) as caught:
        example_inputs(tmp_path)
    assert caught.value.cause.startswith(f"{tmp_path}/client.py: ")
    assert caught.value.cause.endswith(says)
    assert "def inputs()" in caught.value.remedy
