# SPDX-License-Identifier: BSD-3-Clause
"""Reads Debian's Fashion-MNIST with torch alone."""
import gzip

import torch


def read_images(split):
    """The images of "train" or "t10k" as float [N, 1, 28, 28] from 0 to 1, and their labels."""

    def read(kind, header):
        path = f"/usr/share/datasets/fashion-mnist/{split}-{kind}-ubyte.gz"
        with gzip.open(path) as file:
            return torch.frombuffer(bytearray(file.read()[header:]), dtype=torch.uint8)

    images = read("images-idx3", 16).reshape(-1, 1, 28, 28)
    return images.float() / 255, read("labels-idx1", 8).long()
