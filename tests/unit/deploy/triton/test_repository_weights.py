import pytest

from deploy.host.errors import RepositoryError
from deploy.host.paths import MODEL_REPOSITORY
from deploy.triton.card import check_digest, read_card


@pytest.mark.parametrize("model", ["nugraph2", "nugraph3"])
def test_the_tracked_weights_are_what_their_cards_say(model):
    folder = MODEL_REPOSITORY / model / "1"
    check_digest(folder / "weights.safetensors", read_card(folder).weights.sha256)


def test_one_flipped_byte_is_noticed(tmp_path):
    tracked = MODEL_REPOSITORY / "nugraph3" / "1"
    content = bytearray((tracked / "weights.safetensors").read_bytes())
    content[-1] ^= 1
    (tmp_path / "weights.safetensors").write_bytes(content)
    with pytest.raises(RepositoryError, match="is not the file model"):
        check_digest(tmp_path / "weights.safetensors", read_card(tracked).weights.sha256)
