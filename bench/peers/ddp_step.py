#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Times a training step of PyTorch's DistributedDataParallel, with the models and batches of
`lockstep bench step`: over Gloo, or over NCCL where one rank has the GPU."""

import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from torch_ranks import agreed_repetitions, run_ranks

CLASSES = 10


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a shortcut (He et al., 2015)."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = functional.relu(self.norm1(self.conv1(x)))
        return functional.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class Bottleneck(nn.Module):
    """A 3x3 convolution, which has the stride, between two of 1x1."""

    def __init__(self, inputs, width, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width),
            nn.ReLU(), nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(blocks, channels):
    stem = [nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64),
            nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)]
    return nn.Sequential(*stem, *blocks, *head)


def resnet18():
    blocks, channels = [], 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [ResidualBlock(channels, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        channels = outputs
    return resnet(blocks, channels)


def resnet50():
    blocks, channels = [], 64
    for width, count in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(count):
            stride = 2 if block == 0 and width > 64 else 1
            blocks.append(Bottleneck(channels, width, 4 * width, stride))
            channels = 4 * width
    return resnet(blocks, channels)


class EncoderLayer(nn.Module):
    """Attention and a hidden layer, each after a normalization (Vaswani et al., 2017)."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.projections = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.hidden = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, hidden), nn.GELU(),
                                    nn.Linear(hidden, width))

    def attention(self, x):
        batch, length, width = x.shape
        projected = self.projections(self.norm(x))
        projected = projected.view(batch, length, 3, self.heads, width // self.heads)
        queries, keys, values = projected.permute(2, 0, 3, 1, 4).unbind()
        scale = (width // self.heads) ** -0.5
        weights = torch.softmax(queries @ keys.transpose(-2, -1) * scale, -1)
        return self.output((weights @ values).transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(x)
        return x + self.hidden(x)


class MeanOfLength(nn.Module):
    def forward(self, x):
        return x.mean(1)


def transformer():
    return nn.Sequential(*(EncoderLayer(512, 8, 2048) for _ in range(6)), nn.LayerNorm(512),
                         MeanOfLength(), nn.Linear(512, CLASSES))


def mlp25m():
    layers = [nn.Linear(2048, 2048)]
    for _ in range(5):
        layers += [nn.ReLU(), nn.Linear(2048, 2048)]
    return nn.Sequential(*layers)


def mlp():
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, CLASSES))


def sgd(parameters, **more):
    return torch.optim.SGD(parameters, lr=0.01, **more)


def sgd_with_momentum(parameters, **more):
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9, **more)


def adam(parameters, **more):
    return torch.optim.Adam(parameters, lr=1e-3, **more)


# Model, optimizer, loss, input and target of one rank's batch.
WORK = {
    "linear": (lambda: nn.Linear(1, 1), sgd, functional.mse_loss,
               lambda: torch.randn(32, 1), lambda: torch.randn(32, 1)),
    "mlp": (mlp, adam, functional.cross_entropy,
            lambda: torch.randn(64, 784), lambda: torch.randint(CLASSES, (64,))),
    "mlp25m": (mlp25m, sgd, functional.mse_loss,
               lambda: torch.randn(64, 2048), lambda: torch.randn(64, 2048)),
    "mlp25m-adam": (mlp25m, adam, functional.mse_loss,
                    lambda: torch.randn(64, 2048), lambda: torch.randn(64, 2048)),
    "resnet18": (resnet18, sgd_with_momentum, functional.cross_entropy,
                 lambda: torch.randn(64, 3, 32, 32), lambda: torch.randint(CLASSES, (64,))),
    "resnet50": (resnet50, sgd_with_momentum, functional.cross_entropy,
                 lambda: torch.randn(32, 3, 224, 224), lambda: torch.randint(CLASSES, (32,))),
    "transformer": (transformer, adam, functional.cross_entropy,
                    lambda: torch.randn(32, 128, 512), lambda: torch.randint(CLASSES, (32,))),
}


# With "none", autocast is disabled, but needs a type.
AMP_TYPES = {"none": torch.bfloat16, "bf16": torch.bfloat16, "fp16": torch.float16}


def rank_main(rank, options):
    make_model, make_optimizer, loss, make_input, make_target = WORK[options.model]
    torch.manual_seed(rank)
    model = DistributedDataParallel(make_model().to(options.device))
    device_type = torch.device(options.device).type
    scaler = torch.amp.GradScaler(device_type) if options.amp == "fp16" else None
    optimizer = make_optimizer(model.parameters(), **({"fused": True} if options.fused else {}))
    batch, target = make_input().to(options.device), make_target().to(options.device)

    def step():
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=options.set_to_none)
        with torch.autocast(device_type, AMP_TYPES[options.amp], enabled=options.amp != "none"):
            value = loss(model(batch), target)
        if scaler:
            scaler.scale(value).backward()
            scaler.step(optimizer)
            scaler.update()
        else:
            value.backward()
            optimizer.step()
        if options.device != "cpu":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    repetitions = agreed_repetitions(step, options.seconds, 5, 5000)
    times = torch.tensor([step() for _ in range(repetitions)], dtype=torch.float64)
    quantiles = times.quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    quantiles = quantiles.to(options.device if options.backend == "nccl" else "cpu")
    dist.all_reduce(quantiles, dist.ReduceOp.MAX)  # the slower rank's
    if rank == 0:
        names = ("us_p10", "us_median", "us_p90")
        row = {name: value * 1e6 for name, value in zip(names, quantiles.tolist())}
        row = {"model": options.model, "mode": "ddp", "amp": options.amp, **row}
        print(json.dumps({"rows": [row]}))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=WORK)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--device", default="cpu", help="cpu, or the GPU of all ranks: cuda:0")
    parser.add_argument("--backend", default="gloo", choices=("gloo", "nccl"))
    parser.add_argument("--set-to-none", action="store_true", help="instead of zeroing gradients")
    parser.add_argument("--fused", action="store_true", help="PyTorch's fused optimizers")
    parser.add_argument("--amp", default="none", choices=AMP_TYPES)
    parser.add_argument("--seconds", type=float, default=2)
    options = parser.parse_args()
    run_ranks(rank_main, options.ranks, options, backend=options.backend)


if __name__ == "__main__":
    main()
