"""The network of both steps, as trained by train.py: a small U-Net (arXiv:1606.06650)."""

from itertools import pairwise

import torch
from torch import Tensor, nn


def twice(before: int, width: int) -> nn.Sequential:
    """Return two convolutions."""
    layers: list[nn.Module] = []
    for size in (before, width):
        layers += [nn.Conv3d(size, width, 3, padding=1), nn.BatchNorm3d(width), nn.ReLU()]
    return nn.Sequential(*layers)


class UNet(nn.Module):
    """Works at half the volume's resolution, and two levels below that."""

    def __init__(self, widths: tuple[int, ...] = (12, 24, 48)) -> None:
        super().__init__()
        self.first = nn.Conv3d(1, widths[0], 4, stride=2, padding=1)
        self.down = nn.ModuleList(map(twice, (widths[0], *widths), widths))
        pairs = pairwise(widths)
        self.up = nn.ModuleList(twice(low + high, high) for high, low in pairs)
        self.last = nn.ConvTranspose3d(widths[0], 1, 2, stride=2)
        self.shrink = nn.MaxPool3d(2)
        self.grow = nn.Upsample(scale_factor=2)

    def forward(self, volume: Tensor) -> Tensor:
        """Return the probability of brain, of the shape of ``volume`` [volumes, 1, n, n, n]."""
        x = self.first(volume).relu()
        seen = []
        for number, level in enumerate(self.down):
            x = level(self.shrink(x) if number else x)
            seen.append(x)
        for level, beside in zip(reversed(self.up), reversed(seen[:-1]), strict=True):
            x = level(torch.cat([self.grow(x), beside], dim=1))
        return self.last(x).sigmoid()
