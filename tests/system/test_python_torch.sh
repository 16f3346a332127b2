#!/usr/bin/env bash
# The Python package with PyTorch and transformers, which SN_TEST_PYTHON has, or the system's Python.
. "$(dirname "$0")/lib.sh"
python_tests
python -c "import torch" 2>/dev/null || skip "needs PyTorch: SN_TEST_PYTHON=a Python that has torch, transformers, peft, numpy and pytest"
python_tests test_torch.py test_transformers.py -W ignore::FutureWarning
