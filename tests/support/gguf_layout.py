"""Where the parts of a GGUF file lie, for tools of the tests that change one."""
import struct

ALIGNMENT = 32
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


class Layout:
    """version; n_values, and their bytes, values; tensors: (its entry without the offset, type, elements, offset); start of their data"""

    def __init__(self, data):
        magic, self.version, n_tensors, self.n_values = struct.unpack_from("<4sIQQ", data)
        assert magic == b"GGUF"
        at = begin = 24
        for _ in range(self.n_values):
            at = behind_text(data, at)
            at = behind_value(data, at + 4, struct.unpack_from("<I", data, at)[0])
        self.values, self.tensors = data[begin:at], []
        for _ in range(n_tensors):
            entry, at = at, behind_text(data, at)
            rank, = struct.unpack_from("<I", data, at)
            n = 1
            for length in struct.unpack_from(f"<{rank}Q", data, at + 4):
                n *= length
            at += 4 + 8 * rank
            kind, offset = struct.unpack_from("<IQ", data, at)
            self.tensors.append((data[entry : at + 4], kind, n, offset))
            at += 12
        self.start = (at + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
