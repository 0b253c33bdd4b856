import pytest

from deploy.deployment.gpus import CUDA_FAMILIES
from deploy.host.errors import EnvironmentSetupError
from deploy.triton.release import RELEASES, find_release


def test_an_unknown_release_is_answered_with_those_the_kit_knows():
    with pytest.raises(EnvironmentSetupError) as caught:
        find_release("23.01")
    assert caught.value.cause == "the kit does not know Triton 23.01"
    assert caught.value.remedy == "one of: 24.10"


def test_what_a_release_needs_of_a_gpu_is_known():
    for release in RELEASES.values():
        assert int(release.gpu_needs.cuda.partition(".")[0]) in CUDA_FAMILIES
        assert release.gpu_needs.wanted_driver >= release.gpu_needs.oldest_driver
