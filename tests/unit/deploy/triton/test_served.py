"""What Triton makes of a configuration: versions and processes."""

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from deploy.triton.config import (
    ModelConfig,
    is_complete,
    served_versions,
    skipped_warmups,
    stub_count,
)


def config(text: str) -> ModelConfig:
    return text_format.Parse(text, model_config_pb2.ModelConfig())


@pytest.mark.parametrize(
    ("policy", "versions"),
    [
        ("", (12,)),
        ("version_policy { latest { num_versions: 2 } }", (3, 12)),
        ("version_policy { latest { num_versions: 9 } }", (1, 3, 12)),
        ("version_policy { all { } }", (1, 3, 12)),
        ("version_policy { specific { versions: [1, 2, 12] } }", (1, 12)),
    ],
)
def test_the_version_policy_says_which_versions_are_served(policy, versions):
    names = ["1", "12", "3", "03", "0", "warmup", "configs", "-1"]
    assert served_versions(config(policy), names) == versions


@pytest.mark.parametrize(
    ("text", "without_gpu", "with_two"),
    [
        ("", 1, 2),
        ("instance_group { kind: KIND_CPU }", 1, 1),
        ("instance_group { kind: KIND_CPU count: 3 }", 3, 3),
        ("instance_group { count: 3 }", 3, 6),
        ("instance_group { count: 3 gpus: [1] }", 3, 3),
        ("instance_group { count: 3 gpus: [0, 2] }", 3, 3),
        ("instance_group { kind: KIND_GPU count: 2 }", 0, 4),
        ("instance_group { kind: KIND_GPU count: 2 gpus: [0] }", 2, 2),
        ("instance_group { kind: KIND_MODEL count: 2 }", 2, 2),
        ("instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU }", 1, 3),
    ],
)
def test_processes_are_those_of_all_groups_on_all_their_devices(text, without_gpu, with_two):
    written = config(f'backend: "python" {text}')
    assert stub_count(written, versions=1, gpus=0) == without_gpu
    assert stub_count(written, versions=1, gpus=2) == with_two
    assert stub_count(written, versions=3, gpus=2) == 3 * with_two


@pytest.mark.parametrize(
    "text", ['backend: "onnxruntime"', 'platform: "ensemble"', 'platform: "pytorch_libtorch"']
)
def test_models_of_other_backends_have_no_processes_of_their_own(text):
    written = config(f"{text} instance_group {{ kind: KIND_CPU count: 4 }}")
    assert stub_count(written, versions=1, gpus=0) == 0


def test_a_configuration_is_complete_that_names_backend_inputs_and_outputs():
    tensors = 'input { name: "x" } output { name: "y" }'
    assert is_complete(config(f'backend: "python" {tensors}'))
    assert is_complete(config(f'platform: "ensemble" {tensors}'))
    assert not is_complete(config(tensors))
    assert not is_complete(config('backend: "python" input { name: "x" }'))


def test_warm_ups_of_no_sample_are_named():
    written = config('model_warmup { name: "a" batch_size: 1 } model_warmup { name: "b" }')
    assert skipped_warmups(written) == ("b",)
