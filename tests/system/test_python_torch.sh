#!/usr/bin/env bash
# The Python package with PyTorch and transformers, which SN_TEST_PYTHON has, or the system's Python, or pip fetches at the first
# use (6 GB on disk); and once more with the oldest transformers that pyproject.toml allows.
. "$(dirname "$0")/lib.sh"
python_tests
tools=${cache:-${XDG_CACHE_HOME:-$HOME/.cache}/swarm-node}/tools
# fetched NAME PACKAGE...: the folder of these packages, which pip fetches at the first use.
fetched() {
  local folder=$tools/$1; shift
  [ -d "$folder" ] && { echo "$folder"; return; }
  timeout 420 python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-cache-dir --target "$scratch/packages" "$@" >&2 || return 1
  mkdir -p "$tools"
  mv -T "$scratch/packages" "$folder" 2>/dev/null || [ -d "$folder" ] || return 1
  echo "$folder"
}

own=$PYTHONPATH torch=
if ! python -c "import torch" 2>/dev/null; then
  mkdir -p "$tools"
  [ -d "$tools/python-torch-1" ] || [ "$(df --output=avail -BG "$tools" "$scratch" | sed 1d | tr -dc '0-9\n' | sort -n | head -1)" -ge 15 ] ||
    skip "needs PyTorch, and 15 GB on disk to fetch it: SN_TEST_PYTHON=a Python that has torch, transformers, peft, accelerate, numpy and pytest"
  torch=$(TMPDIR=$scratch fetched python-torch-1 torch==2.15.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 numpy==2.4.6) ||
    skip "pip could not install PyTorch: SN_TEST_PYTHON=a Python that has torch, transformers, peft, accelerate, numpy and pytest"
fi
export PYTHONPATH=$own${torch:+:$torch}
python_tests_in() { (cd "$here/../../python/tests" && python -m pytest -q -p no:cacheprovider --basetemp "$scratch/$1" "${@:2}") >&2 || fail "see above: $1"; }
python_tests_in newest test_torch.py test_transformers.py -W ignore::FutureWarning

oldest=$(sed -n 's/^transformers = .*transformers>=\([0-9.]*\).*/\1/p' "$here/../../pyproject.toml")
packages=$(fetched "transformers-$oldest" --no-deps "transformers==$oldest" tokenizers==0.14.1 huggingface_hub==0.17.3 peft==0.6.0 accelerate==0.24.1 \
  requests urllib3 charset-normalizer certifi) || skip "pip could not install transformers $oldest"
export PYTHONPATH=$own:$packages${torch:+:$torch}
[ "$(python -c 'import transformers; print(transformers.__version__)')" = "$oldest" ] || fail "transformers $oldest is not the one that is imported"
python_tests_in "transformers-$oldest" test_transformers.py -W ignore
