"""torch_scatter's scatter_max, for the loss of the instance head."""

import torch


def scatter_max(
    src: torch.Tensor, index: torch.Tensor, out: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    largest = out.scatter_reduce(0, index, src, "amax")
    place = torch.full(out.shape, src.shape[0])
    where = torch.nonzero(src == largest[index])[:, 0]
    return largest, place.scatter_reduce(0, index[where], where, "amin")
