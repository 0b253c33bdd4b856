"""The network, as trained by train.py and served by model.py."""

from itertools import pairwise

import torch
from torch import Tensor, nn

CLASSES = 3


class Classifier(nn.Module):
    """Four convolutions, each of which halves the image; the mean of the last is classified."""

    def __init__(self, widths: tuple[int, ...] = (16, 24, 32, 48)) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 5, stride=2, padding=2)]
        for before, width in pairwise(widths):
            layers += [nn.BatchNorm2d(before), nn.ReLU()]
            layers += [nn.Conv2d(before, width, 3, padding=1), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers, nn.BatchNorm2d(widths[-1]), nn.ReLU())
        self.classes = nn.Linear(widths[-1], CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        """Return logits [images, 3] for charge [images, 3, 96, 96] (ADC counts x ticks)."""
        return self.classes(self.features(torch.log1p(image / 100)).mean(dim=(2, 3)))
