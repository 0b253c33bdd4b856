import pytest

from deploy.deployment.gpus import CUDA_FAMILIES
from deploy.host.errors import EnvironmentSetupError
from deploy.triton.release import GPU_NEEDS, RELEASES, find_release, gpu_needs


def test_an_unknown_release_is_answered_with_those_the_kit_knows() -> None:
    with pytest.raises(EnvironmentSetupError) as caught:
        find_release("23.01")
    assert caught.value.cause == "the kit does not know Triton 23.01"
    assert caught.value.remedy == "one of: 24.10"
    with pytest.raises(EnvironmentSetupError) as caught:
        gpu_needs("23.01")
    assert caught.value.cause == "the kit does not know Triton 23.01"
    assert caught.value.remedy == "one of: 24.05, 24.10, 25.03, 25.08, 25.10"


def test_every_release_that_can_be_started_has_its_needs_of_a_gpu() -> None:
    assert GPU_NEEDS.keys() >= RELEASES.keys()
    for needs in GPU_NEEDS.values():
        assert int(needs.cuda.partition(".")[0]) in CUDA_FAMILIES
        assert needs.wanted_driver >= needs.oldest_driver
