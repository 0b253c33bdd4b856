from dataclasses import replace

import pytest

from deploy.deployment.gpus import CUDA_FAMILIES
from deploy.host.errors import EnvironmentSetupError
from deploy.host.paths import CHECKOUT
from deploy.triton.behaviours import BEHAVIOURS, EXACT_SIZES, behaviours_page
from deploy.triton.release import RELEASES, find_release


def test_an_unknown_release_is_answered_with_those_the_kit_knows():
    with pytest.raises(EnvironmentSetupError) as caught:
        find_release("23.01")
    assert caught.value.cause == "the kit does not know Triton 23.01"
    assert caught.value.remedy == "one of: 24.10"


@pytest.mark.parametrize(
    ("server", "there"),
    [("2.51.0", 0), ("2.52.0", 1), ("2.60.0", 4), ("2.66.1", 6), ("2.68.0", 9), ("3.0.0", 11)],
)
def test_a_behaviour_is_there_from_its_release_on(server, there):
    release = replace(find_release("24.10"), server=server)
    assert [release.has(each) for each in BEHAVIOURS] == [True] * there + [False] * (11 - there)


def test_the_guard_against_impossible_shapes_is_off_where_the_server_refuses_them():
    for server, parameters in (("2.66.0", {}), ("2.67.0", {"guard_arrays": "off"})):
        release = replace(find_release("24.10"), server=server)
        assert release.has(EXACT_SIZES) == bool(parameters)
        assert release.model_parameters == parameters


def test_the_documentation_shows_the_table_of_behaviours():
    page = (CHECKOUT / "docs" / "triton-releases.md").read_text()
    assert behaviours_page() in page


def test_what_a_release_needs_of_a_gpu_is_known():
    for release in RELEASES.values():
        assert int(release.gpu_needs.cuda.partition(".")[0]) in CUDA_FAMILIES
        assert release.gpu_needs.wanted_driver >= release.gpu_needs.oldest_driver
