#!/usr/bin/env python3
"""Writes device/codebooks.inc.h: the points of the codebooks of the IQ types.

    pip install --target DIR gguf numpy; PYTHONPATH=DIR scripts/make_codebooks.py > device/codebooks.inc.h

A codebook is a set of points in the order of their coordinates, the last coordinate first: 8 of three levels or 4 of eight. A
point is a word of which each four bits are a level, those of the first coordinate the lowest. The sets are facts of the GGUF
format; the package `gguf`, its specification in code, has them.
"""
import textwrap

import numpy as np
from gguf import quants

BOOKS = ["IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ1_S", "IQ3_XXS", "IQ3_S"]
print("""/* Made by scripts/make_codebooks.py, which says what the words mean. Who includes this defines SN_BOOK(name, words..): the
 * books of eight weights and then those of four, in the order of device/codebooks.h. clang-format off */""")
for name in BOOKS:
    book = getattr(quants, name)
    book.init_grid()
    points = book.grid.reshape(book.grid_shape)
    levels = np.sort(np.array(book.grid_map, dtype=np.float32))
    digits = np.searchsorted(levels, points).astype(np.int64)
    assert (levels[digits] == points).all()
    assert (np.diff(digits @ (len(levels) ** np.arange(digits.shape[1]))) > 0).all()
    words = ", ".join(hex(word) for word in digits @ (16 ** np.arange(digits.shape[1])))
    print(f"SN_BOOK({'IQ1' if name == 'IQ1_S' else name},")
    print(textwrap.fill(words, 119, initial_indent="    ", subsequent_indent="    ") + ")")
