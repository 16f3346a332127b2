#!/usr/bin/env bash
# Names of models in libswarm: with the key "cache" a program opens ORG/NAME and URLs, fetches what it needs and no more, compares it
# with a manifest, and computes what the files compute. Without the key, names are paths. Python takes both caches from the environment.
. "$(dirname "$0")/lib.sh"
python_tests

hub=$scratch/hub
mkdir -p "$hub/org/folder" "$hub/org/file"
cp "$fixtures"/golden/llama/{config.json,model.safetensors} "$hub/org/folder/" || fail "no fixture"
cp "$fixtures/gguf/phi3.gguf" "$hub/org/file/"
start_hub "$hub"
succeeds "$bin/swarm" hash "$hub/org/folder" --out "$scratch/manifest"
succeeds "$bin/swarm" hash "$hub/org/file/phi3.gguf" --out "$scratch/other-manifest"
python - "$fixtures" "$scratch" "$store" <<'END' >&2 || fail "see above"
import os, sys
import swarmnode
from swarmnode import errors
fixtures, scratch, store = sys.argv[1:]

def ids(model):
    with model:
        return model.generate([1, 2, 3], max_tokens=4, temperature=0).ids

def refused(*args, **given):
    try:
        swarmnode.Model(None, *args, **given)
    except errors.Refused as e:
        return str(e)
    raise AssertionError("it was opened")

expected = ids(swarmnode.Model(None, fixtures + "/golden/llama"))
assert ids(swarmnode.Model(None, "org/folder", manifest=scratch + "/manifest")) == expected
assert ids(swarmnode.Model(None, "org/folder@main")) == expected
assert os.path.exists(scratch + "/hf/hub/models--org--folder/refs/main")
assert ids(swarmnode.Model(None, store + "/org/file/phi3.gguf", cache=scratch + "/c")) == ids(
    swarmnode.Model(None, fixtures + "/gguf/phi3.gguf"))
assert "no_vocab" in refused("org/file:phi3.gguf", parts="tokenizer") # its header was fetched and read
assert "no file" in refused("org/file:none.gguf"), refused("org/file:none.gguf")
assert "--manifest" in refused("org/file", manifest=scratch + "/manifest")
assert "manifest is for models" in refused(fixtures + "/golden/llama", manifest=scratch + "/manifest")
assert "do not fit into --cache-max" in refused("org/file", cache=scratch + "/d", cache_max="1KiB", hub_cache=scratch + "/e")
assert "org/folder" in refused("org/folder", cache=None), refused("org/folder", cache=None)
END
[ "$(hub_count token)" = 0 ] || fail "the token went to another host"
echo ok
