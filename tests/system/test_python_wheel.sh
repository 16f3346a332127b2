#!/usr/bin/env bash
# `pip wheel .` makes one wheel for every Python 3, with the library and both programs; what it installs works alone.
. "$(dirname "$0")/lib.sh"
for tool in ccache cmake ninja; do command -v $tool >/dev/null || skip "needs $tool: without it the build takes minutes"; done
python_tests
root=$(realpath "$here/../..")
export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_GENERATOR=Ninja CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
timeout 500 "${SN_TEST_PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index \
  --config-settings cmake.define.SN_CUDA=OFF -w "$scratch/wheels" "$root" >&2 || { [ $? = 124 ] && skip "the build took longer than 500 seconds" || fail "the wheel was not built"; }
version=$("$bin/swarm" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)
wheel=$(echo "$scratch"/wheels/swarmnode-"$version"-py3-none-linux_*.whl)
[ -f "$wheel" ] || fail "the wheel's name is not right: $(ls "$scratch/wheels")"
python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-index --target "$scratch/site" "$wheel" >&2 ||
  fail "the wheel was not installed"
for program in swarm swarm-node; do
  [ "$("$scratch/site/bin/$program" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)" = "$version" ] || fail "the wheel has no $program"
done
unset SWARM_LIBRARY
export PYTHONPATH=$scratch/site:$PYTHONPATH
cd "$scratch"
succeeds "${SN_TEST_PYTHON:-python3}" -c "import swarmnode; print(swarmnode.__version__, swarmnode.__file__)"
[ "$(cat run.out)" = "$version $scratch/site/swarmnode/__init__.py" ] || fail "the installed package is another one: $(cat run.out)"
