"""Cuts a GGUF file into parts, in the form of llama.cpp's gguf-split: gguf_split.py MODEL.gguf OUT PARTS [--no-tensors-first]

Writes OUT-00001-of-0000N.gguf and so on. The first part has the metadata; every one has split.no, split.count and
split.tensors.count, and its tensors in the order of the file.
"""
import struct, sys

source, out, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
empty_first = "--no-tensors-first" in sys.argv
ALIGNMENT, SIZES = 32, {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


def text(data, at):
    return at + 8 + struct.unpack_from("<Q", data, at)[0]


def value(data, at, kind):
    if kind == 8:
        return text(data, at)
    if kind != 9:
        return at + SIZES[kind]
    element, n = struct.unpack_from("<IQ", data, at)
    at += 12
    if element != 8:
        return at + n * SIZES[element]
    for _ in range(n):
        at = text(data, at)
    return at


def number(key, kind, form, n):
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I" + form, kind, n)


data = open(source, "rb").read()
magic, version, n_tensors, n_values = struct.unpack_from("<4sIQQ", data)
assert magic == b"GGUF"
at = begin = 24
for _ in range(n_values):
    at = text(data, at)
    at = value(data, at + 4, struct.unpack_from("<I", data, at)[0])
values = data[begin:at]
tensors = []  # entry without its offset, offset
for _ in range(n_tensors):
    entry = at
    at = text(data, at)
    at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 4
    tensors.append((data[entry:at], struct.unpack_from("<Q", data, at)[0]))
    at += 8
start = (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
ends = sorted(offset for _, offset in tensors) + [len(data) - start]
bytes_of = {offset: ends[ends.index(offset) + 1] - offset for _, offset in tensors}

cut = count - empty_first
groups = [[]] * empty_first + [tensors[i * n_tensors // cut : (i + 1) * n_tensors // cut] for i in range(cut)]
for part, group in enumerate(groups):
    own = number("split.no", 2, "H", part) + number("split.count", 2, "H", count) + number("split.tensors.count", 5, "i", n_tensors)
    header = struct.pack("<4sIQQ", b"GGUF", version, len(group), (n_values if part == 0 else 0) + 3)
    header += (values if part == 0 else b"") + own
    body, directory = b"", b""
    for entry, offset in group:
        directory += entry + struct.pack("<Q", len(body))
        body += data[start + offset : start + offset + bytes_of[offset]]
        body += bytes(-len(body) % ALIGNMENT)
    header += directory
    with open(f"{out}-{part + 1:05d}-of-{count:05d}.gguf", "wb") as f:
        f.write(header + bytes(-len(header) % ALIGNMENT) + body)
