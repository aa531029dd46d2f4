"""Discs and crosses to be found in pictures of two domains: by night, and in fog. Made on the spot."""

import torch
from torch.utils.data import Dataset

SIDE = 32


class Shapes(Dataset):
    """Pictures, float32 (3, 32, 32), and masks, int64 (32, 32): 0 is background, 1 a disc, 2 a cross."""

    classes = ("background", "disc", "cross")

    def __init__(self, number: int, seed: int, in_fog: bool) -> None:
        self.number, self.seed, self.in_fog = number, seed, in_fog

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(100_000 * self.seed + index)
        rows, columns = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
        image = (0.3 + 0.2 * columns / SIDE if self.in_fog else 0.2 * rows / SIDE).repeat(3, 1, 1)
        mask = torch.zeros(SIDE, SIDE, dtype=torch.int64)
        for shape in (1, 2):
            centre = torch.randint(6, SIDE - 6, (2,), generator=generator)
            far = torch.stack([(rows - centre[0]).abs(), (columns - centre[1]).abs()])
            inside = far.square().sum(dim=0) <= 25 if shape == 1 else (far.amin(dim=0) <= 1) & (far.amax(dim=0) <= 6)
            colour = 0.5 + 0.3 * torch.rand(3, 1, generator=generator)
            colour[shape] += 0.2  # discs are a little greener, crosses a little bluer
            image[:, inside] = colour
            mask[inside] = shape
        image += (0.08 if self.in_fog else 0.03) * torch.randn(image.shape, generator=generator)
        return (image - image.mean()) / image.std(), mask


def load() -> dict[str, tuple[Shapes, Shapes]]:
    """Domain -> training and test set."""
    domains = (("night", False), ("fog", True))
    return {name: (Shapes(240, 2 * fog, fog), Shapes(60, 2 * fog + 1, fog)) for name, fog in domains}
