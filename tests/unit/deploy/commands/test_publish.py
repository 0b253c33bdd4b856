"""What ``publish`` refuses before anything is published."""

from unittest.mock import Mock

import pytest

from deploy.commands import publish
from deploy.publishing.bucket import BucketPlace
from deploy.publishing.folder import FolderPlace
from deploy.publishing.images import ImagePlace


@pytest.mark.parametrize(
    ("place", "more", "said"),
    [
        ("docker://r.example.org/lab/numl", [], "--prune is for buckets and folders"),
        ("{folder}", ["--url", "http://x"], "--url: a server does not say which .sif"),
        ("s3://models/prod", ["--url", "s3://x"], "--url s3://x: the scheme must be one of"),
    ],
    ids=["registry", "folder", "bucket"],
)
def test_a_prune_that_cannot_be_is_refused_before_anything_is_published(
    place, more, said, tmp_path, monkeypatch, capsys
):
    for each in (BucketPlace, FolderPlace, ImagePlace):
        monkeypatch.setattr(each, "publish", Mock(side_effect=AssertionError("it is published")))
    assert publish.main([place.format(folder=tmp_path), "--prune", *more]) == 2
    assert said in capsys.readouterr().err
