"""Make checkpoints with nugraph 25.4, in a process of its own.

Its packages have the names of 24.7.1's: ``NUGRAPH25`` names the folder that they are unpacked in,
``python nugraph25_checkpoints.py FOLDER JSON`` runs with it in ``PYTHONPATH``. For each name in the
JSON, with a model's class and arguments, the folder gets ``NAME.ckpt`` and ``NAME.npz``: hit
features ``x`` and what the encoder makes of them, ``encoded`` (by plane for NuGraph2).
"""

from __future__ import annotations

import json
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch


def stand_in(name: str, **attributes: Any) -> None:
    """Let a package that only training needs be imported."""
    module = ModuleType(name)
    module.__spec__ = ModuleSpec(name, None)
    vars(module).update(attributes)
    sys.modules[name] = module


def main(folder: Path, wanted: dict[str, Any]) -> None:
    stand_in("cuml", DBSCAN=object)
    stand_in("wandb", Table=object)
    stand_in("torch_scatter", scatter_max=None)
    import nugraph
    from nugraph import models

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
