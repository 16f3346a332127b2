#!/usr/bin/env python3
"""Prints registers, spills, static shared memory and occupancy of each CUDA kernel as a Markdown table: what nvcc makes of the
source, without a GPU.

    tests/bench/kernel_table.py [NVCC] [--sm 90]

One line for all instances of a kernel, with the smallest and the largest number. Occupancy: warps of an SM of 64 that fit by
registers (65,536) and threads of a block; shared memory that a launch asks for comes on top and is not counted."""
import argparse
import re
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WARPS, REGISTERS, BLOCKS = 64, 65536, 32  # of an SM since sm_80 (sm_86, sm_89: 48 warps)


def compile_kernels(nvcc, source, sm, folder):
    """({mangled: threads}, the words of ptxas)"""
    done = subprocess.run([nvcc, "-std=c++17", "-O3", f"-arch=sm_{sm}", "-Xptxas", "-v", f"-I{ROOT}", "-Xcompiler=-fno-exceptions",
                           "-cubin", "--keep", "--keep-dir", folder, source, "-o", f"{folder}/{source.stem}.cubin"],
                          capture_output=True, text=True, check=True, cwd=folder)
    ptx = Path(folder, f"{source.stem}.ptx").read_text()
    threads = {name: int(n) for name, n in re.findall(r"\.entry (\w+)\([^)]*\)\s*\.maxntid (\d+)", ptx)}
    return threads, done.stderr


def occupancy(registers, threads):
    warps = -(-threads // 32)
    per_warp = -(-registers * 32 // 256) * 256
    return min(BLOCKS, WARPS // warps, REGISTERS // per_warp // warps) * warps


def span(values):
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low}-{high}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("nvcc", nargs="?", default="nvcc")
    parser.add_argument("--sm", default="90")
    args = parser.parse_args()
    print("| file | kernel | instances | threads | registers | spilled bytes | static shared bytes | warps of 64 |\n" + "| --- " * 8 + "|")
    for source in sorted((ROOT / "device/cuda").glob("*.cu")):
        with tempfile.TemporaryDirectory() as folder:
            threads, words = compile_kernels(args.nvcc, source, args.sm, folder)
        kernels = {}
        for mangled, rest in re.findall(r"Compiling entry function '(\w+)'(.*?)(?=Compiling entry|\Z)", words, re.S):
            name = subprocess.run(["c++filt", mangled], capture_output=True, text=True).stdout
            name = re.search(r"(\w+)(?:<.*>)?\(", name.replace("(anonymous namespace)::", "")).group(1)
            registers = int(re.search(r"Used (\d+) registers", rest).group(1))
            spilled = sum(map(int, re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", rest).groups()))
            shared = re.search(r"(\d+) bytes smem", rest)
            n = threads.get(mangled, 1024)
            kernels.setdefault(name, []).append((n, registers, spilled, int(shared.group(1)) if shared else 0, occupancy(registers, n)))
        for name, rows in sorted(kernels.items()):
            print(f"| {source.stem.removeprefix('kernels_')} | `{name}` | {len(rows)} | " + " | ".join(span(c) for c in zip(*rows)) + " |")


if __name__ == "__main__":
    main()
