"""A program for FedML, as people write them: a loader that goes by the file, FedML's runner, and nothing of ours."""

import fedml
import torch
from fedml import FedMLRunner

PARTS = 5


def load(args):
    """FedML's eight parts and the number of classes: bright corners of small grey pictures, flat, in batches."""
    asked = (args.dataset, args.data_cache_dir, args.partition_method, args.partition_alpha, args.batch_size)
    assert asked == ("corners", "cache/corners", "hetero", 0.5, 10), asked

    def batches(count, seed):
        draw = torch.Generator().manual_seed(seed)
        labels = torch.randint(4, (count,), generator=draw)
        pictures = torch.rand(count, 8, 8, generator=draw)
        for picture, label in zip(pictures, labels, strict=True):
            picture[4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1
        return list(zip(pictures.flatten(1).split(10), labels.split(10), strict=True))

    counts = {part: 40 + 10 * part for part in range(PARTS)}
    train = {part: batches(count, part) for part, count in counts.items()}
    test = {part: batches(20, 100 + part) for part in counts}
    args.client_num_in_total = PARTS  # as FedML's loaders do, whatever the file says
    return [sum(counts.values()), 80, None, batches(80, 200), counts, train, test, 4], 4


class Regression(torch.nn.Module):
    """FedML's first network: one layer, and probabilities for outputs."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = torch.nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.sigmoid(self.linear(x))


def create(args, outputs):
    """The network that the file names."""
    return {"lr": Regression}[args.model](64, outputs)


if __name__ == "__main__":
    args = fedml.init()
    device = fedml.device.get_device(args)
    dataset, output_dim = load(args)
    model = create(args, output_dim)
    runner = FedMLRunner(args, device, dataset, model)
    runner.run()
