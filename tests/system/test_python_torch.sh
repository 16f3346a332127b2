#!/usr/bin/env bash
# The Python package with PyTorch and transformers, which SN_TEST_PYTHON has, or the system's Python, or pip fetches at the first
# use (6 GB on disk); and once more with the oldest transformers that pyproject.toml allows.
. "$(dirname "$0")/lib.sh"
python_tests
export OMP_NUM_THREADS=1 # its threads for tiny matrices wait for each other, actively
own=$PYTHONPATH torch=
if ! python -c "import torch" 2>/dev/null; then
  [ "${SN_TEST_PACKAGES:-}" != few ] || skip "PyTorch is not fetched with SN_TEST_PACKAGES=few"
  mkdir -p "$tools"
  compgen -G "$tools/python-torch-1-*" >/dev/null || [ "$(df --output=avail -BG "$tools" | tr -dc '0-9\n' | tail -1)" -ge 15 ] ||
    skip "needs PyTorch, and 15 GB on disk to fetch it: SN_TEST_PYTHON=a Python that has torch, transformers, peft, accelerate, numpy and pytest"
  torch=$(fetched python-torch-1 300 torch==2.15.0 transformers==5.23.0 peft==0.21.2 accelerate==1.15.0 numpy==2.4.6) || not_fetched PyTorch
fi
export PYTHONPATH=$own${torch:+:$torch}
pytest_in newest test_torch.py test_transformers.py -W ignore::FutureWarning

oldest=$(sed -n 's/^transformers = .*transformers>=\([0-9.]*\).*/\1/p' "$here/../../pyproject.toml")
packages=$(fetched "transformers-$oldest" 120 --no-deps "transformers==$oldest" tokenizers==0.14.1 huggingface_hub==0.17.3 peft==0.6.0 \
  accelerate==0.24.1 requests urllib3 charset-normalizer certifi) || { not_tested "transformers $oldest (pip does not fetch it)"; exit 0; }
export PYTHONPATH=$own:$packages${torch:+:$torch}
[ "$(python -c 'import transformers; print(transformers.__version__)')" = "$oldest" ] || fail "transformers $oldest is not the one that is imported"
pytest_in "transformers-$oldest" test_transformers.py -W ignore
