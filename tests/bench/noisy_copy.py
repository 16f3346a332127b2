#!/usr/bin/env python3
"""Writes a copy of a GGUF file in which each block of weights has another scale, by a factor of 1 + NOISE * (a normal random number):
a model that says nearly the same, to draft with in measurements (drafts.sh).

    tests/bench/noisy_copy.py MODEL.gguf NOISE OUT.gguf

Matrices of Q4_0, Q4_1, Q5_0, Q5_1 and Q8_0 are changed, whose blocks of 32 begin with their scale; the rest is copied.
"""
import os
import random
import struct
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
from gguf_layout import Layout

BLOCK_BYTES = {2: 18, 3: 20, 6: 22, 7: 24, 8: 34}

source, noise, out = sys.argv[1], float(sys.argv[2]), sys.argv[3]
data = bytearray(open(source, "rb").read())
rng = random.Random(1)
file = Layout(data)
for _, kind, n, offset in file.tensors:
    step = BLOCK_BYTES.get(kind)
    for at in range(file.start + offset, file.start + offset + n // 32 * step, step) if step else ():
        scale, = struct.unpack_from("<e", data, at)
        struct.pack_into("<e", data, at, scale * (1 + noise * rng.gauss(0, 1)))
with open(out, "wb") as f:
    f.write(data)
