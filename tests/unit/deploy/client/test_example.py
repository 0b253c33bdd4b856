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
