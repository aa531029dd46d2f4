"""Two domains of spectra, 3 x 16 x 16 floats, as data sets that torch knows; and who holds which of them."""

import torch
from torch.utils.data import TensorDataset


def load(samples=120, noise=0.5):
    """{domain: (train, test)}; targets are class numbers."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(4, 3, 16, 16, generator=generator)
    suite = {}
    for domain, brightness in (("day", 1.0), ("night", 0.3)):
        labels = torch.arange(samples) % len(patterns)
        inputs = brightness * (patterns[labels] + noise * torch.randn(samples, 3, 16, 16, generator=generator))
        cut = samples * 3 // 4
        suite[domain] = TensorDataset(inputs[:cut], labels[:cut]), TensorDataset(inputs[cut:], labels[cut:])
    return suite


def deal(suite, num_clients, seed):
    """Client 0 gets all of the first domain, the others take turns in the second."""
    first, second = suite.domains
    turns = num_clients - 1
    others = [(second.name, range(turn, len(second.train), turns)) for turn in range(turns)]
    return [(first.name, range(len(first.train))), *others]
