# SPDX-License-Identifier: BSD-3-Clause
"""Prints the lists that grad_scaler_test.cpp compares Lockstep's scaler with.

Needs PyTorch 2.3 or later: python3 tests/amp/record_grad_scaler.py
"""

import torch


def main():
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=1)
    scaler = torch.amp.GradScaler("cpu", growth_factor=2.1, backoff_factor=0.37, growth_interval=7)
    scaler.scale(torch.zeros(()))  # makes its tensors
    skips, scales = [], []
    for k in range(1000):
        weight.data.zero_()
        slope = 2.0 ** -(k * k * 31 % 37 % 19) * (1 + k % 10)
        # float16 overflows above 65504.
        scaled = torch.full((), scaler.get_scale()) * torch.tensor(slope)
        weight.grad = scaled.half().float().reshape(1)
        if k % 3 == 0:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        if weight.item() == 0:
            skips.append(k)
        scaler.update(16384.0 if k == 500 else None)
        if k % 50 == 49:
            scales.append(scaler.get_scale())
    print("skips:", ", ".join(str(step) for step in skips))
    print("scales:", ", ".join(str(scale) for scale in scales))
    print("growth tracker:", scaler._get_growth_tracker())


if __name__ == "__main__":
    main()
