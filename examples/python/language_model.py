# SPDX-License-Identifier: BSD-3-Clause
"""The training of ../language_model.cpp in Python, with torch alone, on one rank: the same weights
and the same batches, and the same losses to 1e-4.

    language_model.py [EPOCHS]
"""
import math
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler

WINDOW, WIDTH, VOCABULARY = 64, 128, 256


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, batch_first=True)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)

    def forward(self, tokens):
        output, _ = self.lstm(self.embedding(tokens))
        return functional.linear(output, self.embedding.weight)


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    torch.manual_seed(0)
    with open("/usr/share/common-licenses/GPL-3", "rb") as file:
        tokens = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8).long()
    windows = (len(tokens) - 1) // WINDOW
    inputs = tokens[: windows * WINDOW].reshape(windows, WINDOW)
    targets = tokens[1 : windows * WINDOW + 1].reshape(windows, WINDOW)
    sampler = torch.utils.data.DistributedSampler(inputs, num_replicas=1, rank=0)
    steps = epochs * -(-windows // 16)
    warm_up = steps // 10

    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), 5e-3)
    scheduler = lr_scheduler.SequentialLR(
        optimizer,
        [
            lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=warm_up),
            lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps - warm_up),
        ],
        [warm_up],
    )
    step = 0
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        total = 0
        for samples in torch.tensor(list(sampler)).split(16):
            optimizer.zero_grad()
            scores = model(inputs[samples])
            loss = functional.cross_entropy(scores.flatten(0, 1), targets[samples].flatten())
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.25)
            optimizer.step()
            scheduler.step()
            total += loss.item() * len(samples)
            step += 1
            print(f"step {step}: loss {loss.item():.6f}, norm of the gradients {norm:.3f}")
        print(f"epoch {epoch + 1}: perplexity {math.exp(total / windows):.2f}")


if __name__ == "__main__":
    main()
