"""A gradient in a few numbers: a seeded random projection that keeps inner products in expectation.

Invariant: the sketch is linear in the gradient, and what a coordinate contributes depends on the seed, the parameter's
name and the coordinate's place alone. So sketches of shards add up to that of the whole, on whatever devices they lie.

A parameter is cut into rows of `size` coordinates. Signs are drawn for the columns, a sign and a rotation for each row;
the sketch is the sum of the signed, rotated rows. Two coordinates of one row never meet in a bucket, those of two rows
meet with probability 1 / size and independent signs, as in a count-sketch (Charikar, Chen and Farach-Colton, 2002); but
only a row needs to be hashed, and no two threads write to one place, so that the same device gives the same bits.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from whippletree.types import Floats

CHUNK = 1 << 22
"""Coordinates at a time: bounds the memory, and changes nothing but the rounding."""


def gradient_sketch(gradients: Iterable[tuple[str, Tensor | None]], size: int, seed: int) -> Floats:
    """Sketch of the gradient that these parameters (name, gradient) make up, shape (size,); None counts as zero.

    The inner product of two sketches of one seed estimates that of the gradients, with a standard deviation of at most
    about 2 / sqrt(size) of the product of their norms.
    """
    if size == 0:
        return np.zeros(0, np.float32)
    total = np.zeros(size, np.float32)
    for name, gradient in gradients:
        if gradient is not None:
            total += sketch(gradient, size, f"{seed}/{name}").cpu().numpy()
    return total


@torch.no_grad()
def sketch(gradient: Tensor, size: int, key: str, *, start: int = 0, chunk: int = CHUNK) -> Tensor:
    """Sketch of the coordinates from `start` on of the parameter `key`, shape (size,), float32, on the same device."""
    keys = struct.unpack(">8I", hashlib.sha256(key.encode()).digest())
    flat, device = gradient.reshape(-1), gradient.device
    columns = torch.arange(size, device=device)
    column_signs = 1.0 - 2.0 * (_hashed(columns, keys[:2]) & 1)
    rotations = (columns[None] - columns[:, None]) % size
    total = torch.zeros(size, device=device)
    at, row = -(start % size), start // size  # whole rows, the first of which may begin before this piece
    while at < len(flat):
        rows = min(max(1, chunk // size), -(-(len(flat) - at) // size))
        end = at + rows * size
        piece = flat[max(0, at) : end].float()
        piece = torch.nn.functional.pad(piece, (max(0, -at), max(0, end - len(flat)))).view(rows, size)
        hashes = _hashed(torch.arange(row, row + rows, device=device), keys[2:4])
        signed = piece * column_signs * (1.0 - 2.0 * (hashes & 1))[:, None]
        total += signed.gather(1, rotations[(hashes >> 1) % size]).sum(0)
        at, row = end, row + rows
    return total


def _hashed(numbers: Tensor, keys: Iterable[int]) -> Tensor:
    """32 random-looking bits of each number; integers that stay below 2**63, so the same on every device."""
    found = numbers
    for key in keys:
        found = (found ^ key) & 0xFFFFFFFF
        for _ in range(2):
            found = ((found ^ (found >> 16)) * 0x45D9F3B) & 0xFFFFFFFF
        found = found ^ (found >> 16)
    return found
