#!/usr/bin/env python3
"""Writes device/codebooks.inc.h: which points the codebooks of the IQ types have.

    pip install --target DIR gguf numpy; PYTHONPATH=DIR scripts/make_codebooks.py > device/codebooks.inc.h

A codebook is a set of points in the order of their coordinates, the last coordinate first: 8 of three levels (6,561
points) or 4 of eight (4,096). So a bit for each point says all: set where the codebook has it, the first in the lowest
bit of the first byte. The sets are facts of the GGUF format; the package `gguf`, its specification in code, has them.
"""
import numpy as np
from gguf import quants

BOOKS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"]
print("/* Made by scripts/make_codebooks.py, which says what the bits mean: device/codebooks.c reads them. */")
for name in BOOKS:
    book = getattr(quants, name)
    book.init_grid()
    points = book.grid.reshape(book.grid_shape)
    levels = np.sort(np.array(book.grid_map, dtype=np.float32))
    digits = np.searchsorted(levels, points).astype(np.int64)
    assert (levels[digits] == points).all()
    places = digits @ (len(levels) ** np.arange(digits.shape[1]))
    assert (np.diff(places) > 0).all()
    bits = np.zeros(len(levels) ** digits.shape[1], dtype=np.uint8)
    bits[places] = 1
    text = np.packbits(bits, bitorder="little").tobytes().hex()
    print(f"SN_BITS {name.lower()}_points[] =")
    lines = [text[i:i + 112] for i in range(0, len(text), 112)]
    print("\n".join(f'    "{line}"' for line in lines) + ";")
