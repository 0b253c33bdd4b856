"""The reference event of a model's folder, and what to do about one that is none."""

import numpy as np
import pytest

from deploy.host.errors import RepositoryError
from deploy.triton.golden import golden_of, read_golden


def test_a_file_that_is_no_golden_event_is_named_with_the_remedy(tmp_path):
    path = tmp_path / "golden.npz"
    path.write_bytes(b"")
    for remedy in ("numlkit golden", "import the checkpoint again"):
        with pytest.raises(RepositoryError, match=r"golden\.npz: not a reference event") as caught:
            read_golden(path)
        assert remedy in str(caught.value.remedy)
        (tmp_path / "model.json").write_text("{}")
    np.savez(path, format=np.int64(2))
    with pytest.raises(RepositoryError, match="format 2, but") as caught:
        read_golden(path)
    assert caught.value.remedy is None, "what a newer kit has written is not to be replaced"


def test_a_model_s_golden_event_is_that_of_its_newest_version(tmp_path):
    for version in ("2", "10", "configs"):
        (tmp_path / version).mkdir()
    assert golden_of(tmp_path) is None
    np.savez(tmp_path / "2" / "golden.npz", **{"input/a": np.zeros(1), "output/b": np.zeros(1)})
    assert golden_of(tmp_path) is None, "an older version's says nothing of the newest"
    np.savez(tmp_path / "10" / "golden.npz", **{"input/a": np.ones(1), "output/b": np.ones(1)})
    assert golden_of(tmp_path).inputs["a"] == [1]
    with pytest.raises(RepositoryError, match="none: No such file"):
        golden_of(tmp_path / "none")
