"""Cuts a GGUF file into parts, in the form of llama.cpp's gguf-split: gguf_split.py MODEL.gguf OUT PARTS [--no-tensors-first]

Writes OUT-00001-of-0000N.gguf and so on. The first part has the metadata; every one has split.no, split.count and
split.tensors.count, and its tensors in the order of the file.
"""
import struct, sys

from gguf_layout import ALIGNMENT, Layout

source, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
empty_first = "--no-tensors-first" in sys.argv


def number(key, kind, form, n):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I" + form, kind, n)


data = open(source, "rb").read()
file = Layout(data)
n_tensors, start = len(file.tensors), file.start
tensors = [(entry, offset) for entry, _, _, offset in file.tensors]
ends = sorted(offset for _, offset in tensors) + [len(data) - start]
bytes_of = {offset: ends[ends.index(offset) + 1] - offset for _, offset in tensors}

cut = count - empty_first
groups = [[]] * empty_first + [tensors[i * n_tensors // cut : (i + 1) * n_tensors // cut] for i in range(cut)]
for part, group in enumerate(groups):
    own = number("split.no", 2, "H", part) + number("split.count", 2, "H", count) + number("split.tensors.count", 5, "i", n_tensors)
    header = struct.pack("<4sIQQ", b"GGUF", file.version, len(group), (file.n_values if part == 0 else 0) + 3)
    header += (file.values if part == 0 else b"") + own
    body, directory = b"", b""
    for entry, offset in group:
        directory += entry + struct.pack("<Q", len(body))
        body += data[start + offset : start + offset + bytes_of[offset]]
        body += bytes(-len(body) % ALIGNMENT)
    header += directory
    with open(f"{out}-{part + 1:05d}-of-{count:05d}.gguf", "wb") as f:
        f.write(header + bytes(-len(header) % ALIGNMENT) + body)
