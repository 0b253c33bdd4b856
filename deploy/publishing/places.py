"""The place of a destination."""

from __future__ import annotations

from pathlib import Path

from deploy.publishing.destination import Bucket, Destination
from deploy.publishing.place import Place


def place_at(destination: Destination) -> Place:
    # Each is imported when used: boto3 takes 0.3 s.
    if isinstance(destination, Bucket):
        from deploy.publishing.bucket import BucketPlace

        return BucketPlace(destination)
    if isinstance(destination, Path):
        from deploy.publishing.folder import FolderPlace

        return FolderPlace(destination)
    if destination.scheme == "oras":
        from deploy.publishing.sifs import SifPlace

        return SifPlace(destination)
    from deploy.publishing.images import ImagePlace

    return ImagePlace(destination)
