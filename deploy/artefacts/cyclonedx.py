"""Documents of CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json)."""

import json
import uuid
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from deploy import __version__


def document(
    content: Mapping[str, Any], *, epoch: int, about: Mapping[str, Any] | None = None
) -> str:
    """Return a document; the same input gives the same text.

    Args:
        content: What is in it, besides its metadata.
        epoch: Its time (Unix, s).
        about: The component that it is about; None: another document says.
    """
    tool = {"type": "application", "name": "numlkit", "version": __version__}
    metadata: dict[str, Any] = {
        "timestamp": datetime.fromtimestamp(epoch, timezone.utc).isoformat(),
        "tools": {"components": [tool]},
    }
    if about is not None:
        metadata["component"] = about
    written = {"specVersion": "1.6", "version": 1, "metadata": metadata, **content}
    serial = uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(written, sort_keys=True))
    written = {"bomFormat": "CycloneDX", "serialNumber": f"urn:uuid:{serial}", **written}
    return json.dumps(written, indent=2) + "\n"
