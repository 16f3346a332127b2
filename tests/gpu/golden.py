#!/usr/bin/env python3
"""Compares `swarm forward` on a device with the reference's numbers of golden families, prompt at once and eight tokens.

    golden.py SWARM DEVICE FOLDER        # FOLDER: one folder for each family, with golden.safetensors

Prints a line for each run; 1 when one is further away than docs/DEVICES.md promises. Needs nothing but Python."""
import array
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

FEW, FEW_TOLERANCE, PROMPT_TOLERANCE = 8, 1e-4, 3e-2  # relative to the largest value of a tensor
SECONDS = 60


def tensors(path):
    data = Path(path).read_bytes()
    (n,) = struct.unpack_from("<Q", data)
    for name, t in json.loads(data[8:8 + n]).items():
        if name != "__metadata__":
            begin, end = (8 + n + at for at in t["data_offsets"])
            yield name, array.array({"F32": "f", "I64": "q"}[t["dtype"]], data[begin:end])


def furthest(got, want):
    """The largest difference, relative to the largest value; NaN counts as far."""
    largest = max(abs(w) for w in want)
    return max(d if d == d else float("inf") for d in (abs(g - w) for g, w in zip(got, want))) / largest


def run(swarm, device, family, n, scratch):
    want = dict(tensors(family / "golden.safetensors"))
    ids, out = list(want["input_ids"]), scratch / f"{family.name}-{n}.safetensors"
    n = min(n or len(ids), len(ids))
    (scratch / "ids.json").write_text(json.dumps(ids[:n]))
    done = subprocess.run([swarm, "forward", "--model", family, "--local", "all", "--device", device, "--every-block", "--kv-dtype", "f32",
                           "--ids-file", scratch / "ids.json", "--out", out], capture_output=True, text=True, timeout=SECONDS)
    if done.returncode:
        return f"FAILED {done.stderr.strip()[-300:]}"
    far = {name: furthest(values, want[name][:len(values)]) for name, values in tensors(out) if name.startswith("hidden.")}
    name = max(far, key=far.get)
    limit = FEW_TOLERANCE if n <= FEW else PROMPT_TOLERANCE
    return f"{'passed' if far[name] <= limit else 'FAILED'} {n} tokens: {name} is {far[name]:.1e} away, {limit:.0e} is allowed"


def main():
    swarm, device, folder = sys.argv[1:]
    failed = 0
    with tempfile.TemporaryDirectory() as scratch:
        for family in sorted(p for p in Path(folder).iterdir() if (p / "golden.safetensors").exists()):
            for n in (FEW, 0):
                try:
                    line = run(swarm, device, family, n, Path(scratch))
                except subprocess.TimeoutExpired:
                    line = f"FAILED no answer within {SECONDS} s"
                failed += line.startswith("FAILED")
                print(family.name, line, flush=True)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
