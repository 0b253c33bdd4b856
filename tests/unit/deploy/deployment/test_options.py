import pytest

from deploy.deployment.options import deployment_words


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--dry-run"], []),
        (["site.toml", "--dry", "--engine", "docker"], ["site.toml", "--engine", "docker"]),
        (["--json", "--gpu", "0,1", "--quiet"], ["--gpu", "0,1"]),
        (["--gpu", "--dry-run"], ["--gpu"]),
        (["--image=--json", "--no-heal"], ["--image=--json", "--no-heal"]),
        (["--norm", "a=b", "--norm", "c=d e"], ["--norm", "a=b", "--norm", "c=d e"]),
    ],
)
def test_what_describes_a_deployment_is_kept_in_its_order(words, left):
    assert deployment_words(words) == left
