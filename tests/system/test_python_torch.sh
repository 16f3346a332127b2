#!/usr/bin/env bash
# The Python package with PyTorch and transformers, which SN_TEST_PYTHON has, or the system's Python; and once more with the
# oldest transformers that pyproject.toml allows, which pip fetches at the first use.
. "$(dirname "$0")/lib.sh"
python_tests
python -c "import torch" 2>/dev/null || skip "needs PyTorch: SN_TEST_PYTHON=a Python that has torch, transformers, peft, accelerate, numpy and pytest"
python_tests test_torch.py test_transformers.py -W ignore::FutureWarning

oldest=$(sed -n 's/^transformers = .*transformers>=\([0-9.]*\).*/\1/p' "$here/../../pyproject.toml")
packages=${cache:-${XDG_CACHE_HOME:-$HOME/.cache}/swarm-node}/tools/transformers-$oldest
if [ ! -d "$packages" ]; then
  python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --target "$scratch/packages" "transformers==$oldest" \
    tokenizers==0.14.1 huggingface_hub==0.17.3 peft==0.6.0 accelerate==0.24.1 requests urllib3 charset-normalizer certifi >&2 ||
    skip "pip could not install transformers $oldest"
  mkdir -p "$(dirname "$packages")"
  mv -T "$scratch/packages" "$packages" 2>/dev/null || [ -d "$packages" ]
fi
export PYTHONPATH=$PYTHONPATH:$packages
[ "$(python -c 'import transformers; print(transformers.__version__)')" = "$oldest" ] || fail "transformers $oldest is not the one that is imported"
cd "$here/../../python/tests" && python -m pytest -q -p no:cacheprovider --basetemp "$scratch/oldest" test_transformers.py -W ignore >&2 ||
  fail "see above: transformers $oldest"
