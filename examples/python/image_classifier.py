# SPDX-License-Identifier: BSD-3-Clause
"""The training of ../image_classifier.cpp in Python, with torch alone, on one rank: the same weights
and the same batches, and the same losses to 1e-4.

    image_classifier.py [IMAGES [EPOCHS]]
"""
import copy
import sys

import torch
from torch import nn
from torch.nn import functional

from fashion_mnist import read_images

U64 = 2**64 - 1


class SampleRandom:
    """The random numbers of a sample in one transform, as lockstep/data/sample_random.h draws them."""

    def __init__(self, *key):
        self.state = 0
        for part in key:
            self.state = self.next() ^ part

    def next(self):
        self.state = (self.state + 0x9E3779B97F4A7C15) & U64
        mixed = self.state
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9 & U64
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB & U64
        return mixed ^ mixed >> 31

    def uniform(self):
        return (self.next() >> 11) * 2.0**-53

    def below(self, count):
        return int(self.uniform() * count)


def augmented(image, epoch, sample):
    random = SampleRandom(0, epoch, sample, 0)  # seed, epoch, sample, place in the list
    top, left = random.below(5), random.below(5)
    image = functional.pad(image, (2, 2, 2, 2))[:, top : top + 28, left : left + 28]
    return image.flip(2) if SampleRandom(0, epoch, sample, 1).uniform() < 0.5 else image


def normalized(images):
    return (images - 0.286) / 0.353


def convolution(inputs, outputs):
    return nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)


def make_net():
    return nn.Sequential(
        convolution(1, 16), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        convolution(16, 32), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
    )


def rates(net, images, labels):
    """The shares of images whose label has the greatest output, and one of the five greatest."""
    net.eval()
    with torch.no_grad():
        right = torch.cat([net(part).topk(5)[1] for part in images.split(500)]).eq(labels[:, None])
    return right[:, 0].float().mean().item(), right.any(1).float().mean().item()


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
    epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    torch.manual_seed(0)
    images, labels = read_images("train")
    tests, test_labels = (part[: count // 6] for part in read_images("t10k"))
    sampler = torch.utils.data.DistributedSampler(range(count), num_replicas=1, rank=0)

    net = make_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, weight_decay=5e-4)
    steps = epochs * -(-count // 128)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.02, total_steps=steps)
    decay = 0.98
    ema = torch.optim.swa_utils.AveragedModel(
        net, avg_fn=lambda average, weight, _: decay * average + (1 - decay) * weight
    )
    best, best_epoch, best_weights = -1, 0, None
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        net.train()
        for samples in torch.tensor(list(sampler)).split(128):
            batch = torch.stack([augmented(images[i], epoch, i) for i in samples.tolist()])
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                output = net(normalized(batch))
                loss = functional.cross_entropy(output, labels[samples], label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            scheduler.step()
            ema.update_parameters(net)
            step += 1
            print(f"step {step}: loss {loss.item():.6f}")
        top1, top5 = rates(ema.module, normalized(tests), test_labels)
        print(f"epoch {epoch + 1}: top-1 {top1:.4f}, top-5 {top5:.4f}")
        if top1 > best:
            best, best_epoch, best_weights = top1, epoch, copy.deepcopy(ema.module.state_dict())
        elif epoch - best_epoch == 3:
            break
    net.load_state_dict(best_weights)
    print(f"the best weights are those of epoch {best_epoch + 1}")


if __name__ == "__main__":
    main()
