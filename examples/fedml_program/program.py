"""A plain FedML program with data and a network of its own: `python program.py --cf sp.yaml`, or under MPI."""

import fedml
import torch
from torch.utils.data import DataLoader, TensorDataset

from fedml_dapper import platform as dapper


def load_data(clients=4):
    """FedML's eight-part tuple; classes are bright corners of small grey pictures."""

    def loader(count, seed, shuffle):
        draw = torch.Generator().manual_seed(seed)
        labels = torch.randint(4, (count,), generator=draw)
        images = torch.rand(count, 1, 8, 8, generator=draw)
        for image, label in zip(images, labels, strict=True):
            image[0, 4 * (label // 2) :, 4 * (label % 2) :][:4, :4] += 1
        return DataLoader(TensorDataset(images, labels), batch_size=10, shuffle=shuffle)

    train = {client: loader(60 + 10 * client, client, shuffle=True) for client in range(clients)}
    test = {client: loader(20, 100 + client, shuffle=False) for client in range(clients)}
    counts = {client: len(data.dataset) for client, data in train.items()}
    return sum(counts.values()), 80, None, loader(80, 200, shuffle=False), counts, train, test, 4


if __name__ == "__main__":
    args = dapper.init()
    dataset, device = load_data(), fedml.device.get_device(args)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    if args.backend == "sp":
        trainer, aggregator = dapper.DapperClientTrainer(model, args), dapper.DapperServerAggregator(model, args)
        runner = dapper.InProcessRunner(args, device, dataset, model, trainer, aggregator)
    else:
        runner = dapper.DistributedRunner(args, device, dataset, model)
    fedml.FedMLRunner(args, device, dataset, model, algorithm_flow=runner).run()
    if args.rank == 0:
        torch.save(model.state_dict(), "trained.pt")  # the network that was passed is the one that was trained
