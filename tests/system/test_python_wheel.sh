#!/usr/bin/env bash
# `pip wheel .` makes one wheel for every Python 3, with the library, both programs and the libraries that they need: what it
# installs works alone, also in a bare Debian.
. "$(dirname "$0")/lib.sh"
. "$(dirname "$0")/bare_root.sh"
. "$(dirname "$0")/hardened.sh"
for tool in ccache cmake ninja; do command -v $tool >/dev/null || skip "needs $tool: without it the build takes minutes"; done
python_tests
root=$(realpath "$here/../..")
# With the compiler that CMake takes, beside the build folder: ccache then has the objects of that, whose commands and paths are the same.
work=$root/build-wheel-$$
trap 'rm -rf "$work"; cleanup' EXIT
export CC=cc CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_GENERATOR=Ninja CCACHE_BASEDIR=${CCACHE_BASEDIR:-$root} CCACHE_NOHASHDIR=1
platform=manylinux_$(getconf GNU_LIBC_VERSION | sed 's/.* //; s/\./_/')_$(uname -m) # what docs/PYTHON.md says for wheels that are passed on
timeout 500 "${SN_TEST_PYTHON:-python3}" -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps --no-index \
  --config-settings "build-dir=$work" --config-settings cmake.define.SN_CUDA=OFF --config-settings "wheel.tags=py3-none-$platform" -w "$scratch/wheels" "$root" >&2 || { [ $? = 124 ] && skip "the build took longer than 500 seconds" || fail "the wheel was not built"; }
version=$("$bin/swarm" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)
wheel=$scratch/wheels/swarmnode-$version-py3-none-$platform.whl
[ -f "$wheel" ] || fail "the wheel's name is not right: $(ls "$scratch/wheels")"
python -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-deps --no-index --target "$scratch/site" "$wheel" >&2 ||
  fail "the wheel was not installed"
hardened "$scratch/site/swarmnode/libswarm.so.0" "$scratch/site/swarmnode/bin/swarm" "$scratch/site/swarmnode/bin/swarm-node"
unset SWARM_LIBRARY
for program in swarm swarm-node; do
  [ "$(PYTHONPATH=$scratch/site "$scratch/site/bin/$program" --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -1)" = "$version" ] || fail "the wheel has no $program"
done
(
  cd "$scratch"
  PYTHONPATH=$scratch/site:$PYTHONPATH succeeds "${SN_TEST_PYTHON:-python3}" -c "import swarmnode; print(swarmnode.__version__, swarmnode.__file__)"
) || exit 1
[ "$(cat "$scratch/run.out")" = "$version $scratch/site/swarmnode/__init__.py" ] || fail "the installed package is another one: $(cat "$scratch/run.out")"
grep -q '^libsodium' "$scratch/site/swarmnode/licences/LIBRARIES.txt" || fail "the libraries of the wheel are not listed"

# On a bare Debian with Python and what numpy's own wheel needs, the wheel is all that libswarm and the programs need.
packages=${PYTHONPATH##*:} root_python=python3.11 bare=$scratch/root
[ -d "$packages/numpy" ] || packages=$(python -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])')
[ "python$(python -c 'import sys; print("%d.%d" % sys.version_info[:2])')" = $root_python ] || skip "the rest needs $root_python, as this Debian has it"
dpkg-query -W $root_python >/dev/null 2>&1 || skip "the rest needs Debian's $root_python"
bare_root "$bare" "$root_python, libstdc++6"
in_root "$bare"
mkdir -p "$bare/usr/local/lib/$root_python/dist-packages" "$bare/wheels" "$bare/pip" "$bare/model"
cp -r "$packages"/numpy "$packages"/numpy.libs "$packages"/numpy-*.dist-info "$bare/usr/local/lib/$root_python/dist-packages/"
cp -r "$(python -c 'import pip, pathlib; print(pathlib.Path(pip.__file__).parent)')" "$bare/pip/"
cp "$wheel" "$bare/wheels/"
echo "[1, 17, 42]" >"$bare/model/ids"
cp "$fixtures/golden/llama/"{config.json,model.safetensors} "$bare/model/"
unset PYTHONPATH
succeeds "${root_command[@]}" /usr/bin/env PYTHONPATH=/pip HOME=/tmp $root_python -m pip install --quiet --disable-pip-version-check \
  --break-system-packages --root-user-action=ignore --no-index "/wheels/$(basename "$wheel")"
succeeds "$bin/swarm" generate --model "$bare/model" --local all --ids-file "$bare/model/ids" --max-tokens 8 --ignore-eos --json
expected=$(query "$scratch/run.out" 'd["ids"]')
succeeds "${root_command[@]}" $root_python -c 'import ssl, swarmnode; print(swarmnode.Model(None, "/model").generate([1, 17, 42], max_tokens=8, ignore_eos=True).ids)'
[ "$(cat "$scratch/run.out")" = "$expected" ] || fail "swarmnode on a bare Debian says $(cat "$scratch/run.out"), not $expected"
succeeds "${root_command[@]}" /usr/local/bin/swarm generate --model /model --local all --ids-file /model/ids --max-tokens 8 --ignore-eos --json
[ "$(query "$scratch/run.out" 'd["ids"]')" = "$expected" ] || fail "the program on a bare Debian has other tokens"
succeeds "${root_command[@]}" /usr/local/bin/swarm-node --version
