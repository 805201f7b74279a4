# SPDX-License-Identifier: BSD-3-Clause
"""The training of ../fine_tune.cpp in Python, with torch alone, on one rank: the same weights and
the same batches, and the same losses to 1e-4. It also makes the checkpoint that both begin with.

    fine_tune.py pretrain FILE
    fine_tune.py FILE [IMAGES]
"""
import sys

import torch
from torch import nn
from torch.nn import functional

from fashion_mnist import read_images


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lower = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.upper = nn.Sequential(
            nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Linear(32 * 5 * 5, 5)

    def forward(self, images):
        return self.head(self.upper(self.lower(images)))


def pretrain(file):
    """Trains the net on the classes 0 to 4 for a moment."""
    torch.manual_seed(1)
    images, labels = read_images("train")
    rows = torch.nonzero(labels < 5).flatten()
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), 1e-3)
    for samples in rows[:6400].split(64):
        optimizer.zero_grad()
        functional.cross_entropy(net(images[samples]), labels[samples]).backward()
        optimizer.step()
    torch.save({"model": net.state_dict(), "epoch": 1}, file)


def new_classes(split, count):
    images, labels = read_images(split)
    rows = torch.nonzero(labels >= 5).flatten()[:count]
    return images[rows], labels[rows] - 5


def main(file, count):
    torch.manual_seed(0)
    images, labels = new_classes("train", count)
    tests, test_labels = new_classes("t10k", count // 6)
    sampler = torch.utils.data.DistributedSampler(images, num_replicas=1, rank=0)

    net = Net()
    weights = torch.load(file)["model"]
    net.load_state_dict({k: v for k, v in weights.items() if k[:5] != "head."}, strict=False)
    parts = [(net.head, 1e-3), (net.upper, 3e-4), (net.lower, 1e-4)]
    optimizer = torch.optim.Adam([{"params": p.parameters(), "lr": lr} for p, lr in parts])

    net.requires_grad_(False)
    step = 0
    for epoch, (part, _) in enumerate(parts):
        part.requires_grad_(True)
        sampler.set_epoch(epoch)
        for samples in torch.tensor(list(sampler)).split(64):
            optimizer.zero_grad()
            loss = functional.cross_entropy(net(images[samples]), labels[samples])
            loss.backward()
            optimizer.step()
            step += 1
            print(f"step {step}: loss {loss.item():.6f}")
        with torch.no_grad():
            right = net(tests).argmax(1).eq(test_labels).float().mean().item()
        print(f"{epoch + 1} of {len(parts)} parts trained: accuracy {right:.4f}")


if __name__ == "__main__":
    if sys.argv[1] == "pretrain":
        pretrain(sys.argv[2])
    else:
        main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 30_000)
