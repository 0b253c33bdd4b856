"""Make checkpoints with nugraph 25.4, in a process of its own.

Run as ``python checkpoints.py FOLDER JSON``, with NUGRAPH25 and the stand-ins in ``PYTHONPATH``.
For each name in the JSON, with a model's class and arguments, the folder gets ``NAME.ckpt`` and
``NAME.npz``: hit features ``x`` and what the encoder makes of them, ``encoded`` (by plane for
NuGraph2).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import nugraph
import numpy as np
import torch
from nugraph import models


def main(folder: Path, wanted: dict[str, Any]) -> None:
    assert nugraph.__version__ == "25.4.0", nugraph.__file__
    for name, case in wanted.items():
        torch.manual_seed(0)
        model = getattr(models, case["model"])(**case["arguments"])
        x = 20 * torch.randn(50, model.hparams.in_features) + 100
        with torch.no_grad():
            for training in (True, False):  # training makes the statistics, and their shapes
                model.train(training)
                if case["model"] == "NuGraph2":
                    encoded = model.encoder(dict.fromkeys(model.hparams.planes, x))
                    encoded = torch.stack(list(encoded.values()))
                else:
                    encoded = model.encoder.planar_net(model.encoder.input_norm(x))
        content = {
            "state_dict": model.state_dict(),
            "hyper_parameters": dict(model.hparams),
            "pytorch-lightning_version": "2.6.6",
        }
        torch.save(content, folder / f"{name}.ckpt")
        np.savez(folder / f"{name}.npz", x=x.numpy(), encoded=encoded.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))
