#!/usr/bin/env python3
"""Writes a copy of a GGUF file in which each block of weights has another scale, by a factor of 1 + NOISE * (a normal random number):
a model that says nearly the same, to draft with in measurements (drafts.sh).

    tests/bench/noisy_copy.py MODEL.gguf NOISE OUT.gguf

Matrices of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are changed, whose blocks of 32 begin with their scale; the rest is copied.
"""
import random
import struct
import sys

BLOCK_BYTES = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34}
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def behind_text(data, at):
    return at + 8 + struct.unpack_from("<Q", data, at)[0]


def behind_value(data, at, kind):
    if kind == 8:
        return behind_text(data, at)
    if kind != 9:
        return at + SIZES[kind]
    element, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if element != 8:
        return at + n * SIZES[element]
    for _ in range(n):
        at = behind_text(data, at)
    return at


def tensors(data):
    """The type, number of elements and offset of each tensor, and where their data begins."""
    magic, _, n_tensors, n_values = struct.unpack_from("<4sIQQ", data)
    assert magic == b"GGUF"
    at, found = 24, []
    for _ in range(n_values):
        at = behind_text(data, at)
        at = behind_value(data, at + 4, struct.unpack_from("<I", data, at)[0])
    for _ in range(n_tensors):
        at = behind_text(data, at)
        rank, = struct.unpack_from("<I", data, at)
        shape = struct.unpack_from(f"<{rank}Q", data, at + 4)
        kind, offset = struct.unpack_from("<IQ", data, at + 4 + 8 * rank)
        at += 16 + 8 * rank
        n = 1
        for length in shape:
            n *= length
        found.append((kind, n, offset))
    return found, (at + 31) // 32 * 32


source, noise, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
data = bytearray(open(source, "rb").read())
rng = random.Random(1)
found, start = tensors(data)
for kind, n, offset in found:
    step = BLOCK_BYTES.get(kind)
    for at in range(start + offset, start + offset + n // 32 * step, step) if step else ():
        scale, = struct.unpack_from("<e", data, at)
        struct.pack_into("<e", data, at, scale * (1 + noise * rng.gauss(0, 1)))
with open(out, "wb") as f:
    f.write(data)
