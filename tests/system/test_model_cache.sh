#!/usr/bin/env bash
# Caches of fetched models: whole files lie where Hugging Face's tools look for them, and theirs are found here; --cache-max removes
# what was not used for longest and nothing that is in use; a manifest decides which bytes count, and lets a node share them.
. "$(dirname "$0")/lib.sh"

hub=$scratch/hub
for name in folder other more; do
  mkdir -p "$hub/org/$name"
  cp "$fixtures"/golden/llama/{config.json,model.safetensors} "$hub/org/$name/" || fail "no fixture"
done
printf '{"n": "other"}' >"$hub/org/other/generation_config.json"
printf '{"n": "more"}' >"$hub/org/more/generation_config.json"
golden_ids llama "$scratch/ids"
say=(--ids-file "$scratch/ids" --max-tokens 4 --temperature 0 --local all)
run "$bin/swarm" generate --model "$fixtures/golden/llama" "${say[@]}"
cp "$scratch/run.out" "$scratch/expected"
# generates NAME [option...]: the text is that of the files.
generates() {
  local name=$1
  shift
  succeeds "$bin/swarm" generate --model "$name" "${say[@]}" "$@"
  cmp -s "$scratch/run.out" "$scratch/expected" || fail "$name computes another text"
}
start_hub "$hub"
ours=$SWARM_CACHE/models/org--folder/1111111111111111111111111111111111111111
theirs=$scratch/hf/hub/models--org--folder

# Whole files are blobs under their SHA, with a snapshot and a ref; ours are links to them. The first fetch says that nothing
# vouches for it, later ones have nothing to say.
generates org/folder
[ "$(grep -c 'compared with no manifest' "$scratch/run.err")" = 1 ] || fail "the first fetch does not say that it is not verified"
for file in config.json model.safetensors; do
  sha=$(sha256sum <"$hub/org/folder/$file" | cut -d' ' -f1)
  cmp -s "$theirs/blobs/$sha" "$hub/org/folder/$file" || fail "$file is no blob"
  [ "$(readlink "$theirs/snapshots/$(basename "$ours")/$file")" = "../../blobs/$sha" ] || fail "$file is in no snapshot"
  [ -L "$ours/$file" ] || fail "$file is here twice"
done
[ "$(cat "$theirs/refs/main")" = "$(basename "$ours")" ] || fail "refs/main is not the commit"
bytes=$(hub_count bytes)
generates org/folder
grep -q 'manifest' "$scratch/run.err" && fail "what was fetched earlier is spoken of again"

# Models that lie in the folder as files are listed, and an empty folder says so.
mkdir "$scratch/with-file" "$scratch/empty"
echo GGUF >"$scratch/with-file/one.gguf"
succeeds "$bin/swarm" models --cache "$scratch/with-file"
grep -q "one.gguf  a file: --model $scratch/with-file/one.gguf" "$scratch/run.out" || fail "a file is not listed: $(cat "$scratch/run.out")"
succeeds "$bin/swarm" models --cache "$scratch/empty"
[ "$(cat "$scratch/run.out")" = "no model was fetched to $scratch/empty" ] || fail "an empty folder says $(cat "$scratch/run.out")"

succeeds "$bin/swarm" models --json
[ "$(query "$scratch/run.out" 'd["models"][0]["linked_bytes"]')" = $(($(stat -c %s+ "$hub"/org/folder/*) 0)) ] || fail "$(cat "$scratch/run.out")"

# A branch that other tools have updated since the hub was asked is not set back; what the hub says later counts.
printf '2%.0s' {1..40} >"$theirs/refs/main"
rm -r "$theirs/blobs" "$theirs/snapshots"
generates "org/folder@$(basename "$ours")"
grep -q '^2*$' "$theirs/refs/main" || fail "refs/main was set back"
rm -r "$theirs/blobs" "$theirs/snapshots"
generates org/folder
[ "$(cat "$theirs/refs/main")" = "$(basename "$ours")" ] || fail "refs/main is not what the hub said last"
bytes=$(hub_count bytes)

# What other tools have is found, and what they have removed is fetched again.
rm -rf "$SWARM_CACHE/models"
generates org/folder
[ "$(hub_count bytes)" = "$bytes" ] || fail "what other tools have was fetched"
rm -rf "$theirs"
generates org/folder
[ "$(hub_count bytes)" -gt "$bytes" ] || fail "nothing was fetched, and nothing was there"

# What lies in their snapshot and is another file is not taken, and not in the way of the right one.
rm -rf "$SWARM_CACHE/models"
entry=$theirs/snapshots/$(basename "$ours")/model.safetensors
rm "$entry" && echo other >"$entry"
generates org/folder
cmp -s "$entry" "$hub/org/folder/model.safetensors" || fail "another file is still in the snapshot"

# Both caches may be named from the folder of the process.
bytes=$(hub_count bytes)
mkdir "$scratch/here"
(
  cd "$scratch/here" && export HF_HOME=theirs
  generates org/folder --cache ours
  rm -rf ours/models
  generates org/folder --cache ours
) || exit 1
[ "$(hub_count bytes)" = $((bytes + $(stat -c %s+ "$hub"/org/folder/*) 0)) ] || fail "in caches with relative names files were fetched twice"

# Without the hub, too.
kill_node hub
rm -rf "$SWARM_CACHE/models"
generates org/folder@main
start_hub "$hub"

# The tools themselves agree.
if hf=$(fetched huggingface-hub-1 120 huggingface_hub==2.4.0); then
  PYTHONPATH=$hf python3 - "$scratch/hf/hub" "$hub/org/folder/model.safetensors" <<'END' >&2 || fail "huggingface_hub sees something else"
import sys
from huggingface_hub import hf_hub_download, scan_cache_dir
cache, file = sys.argv[1:]
path = hf_hub_download("org/folder", "model.safetensors", cache_dir=cache, local_files_only=True)
assert open(path, "rb").read() == open(file, "rb").read()
info = scan_cache_dir(cache)
assert not info.warnings, info.warnings
(repo,) = [r for r in info.repos if r.repo_id == "org/folder"]
(revision,) = repo.revisions
assert revision.refs == {"main"} and {f.file_name for f in revision.files} == {"config.json", "model.safetensors"}, revision
END
else
  echo "not compared with huggingface_hub: it cannot be installed here"
fi

# A whole file that is not what the hub names by its SHA is dropped.
kill_node hub
rm -rf "$SWARM_CACHE/models" "$scratch/hf"
start_hub "$hub" --fault wrong
refuses 2 'not the file that the hub names by its SHA' "$bin/swarm" generate --model org/folder "${say[@]}"
[ -e "$theirs/refs" ] && [ ! -e "$theirs/snapshots/$(basename "$ours")/model.safetensors" ] || fail "it lies in the cache of other tools"

# Through a proxy, for hosts that need one.
kill_node hub
start_hub "$hub"
(
  export HF_ENDPOINT=http://nowhere.invalid http_proxy=$HF_ENDPOINT no_proxy=127.0.0.1
  generates org/folder --cache "$scratch/proxied"
) || exit 1
[ "$(hub_count proxied)" -ge 2 ] || fail "the proxy was asked $(hub_count proxied) times"
rm -rf "$SWARM_CACHE/models" "$scratch/hf"
kill_node hub
start_hub "$hub" --fault wrong

# With a manifest, pieces that are others are never kept; files that it does not name are not fetched; its signer can be pinned.
succeeds "$bin/swarm" keygen --out "$scratch/id"
succeeds "$bin/swarm" hash "$hub/org/folder" --identity "$scratch/id" --out "$scratch/manifest"
signer=$(sed -n 's/^signed \([0-9a-f]*\) .*/\1/p' "$scratch/manifest")
refuses 2 'not the file of the manifest, at byte' "$bin/swarm" generate --model org/folder --manifest "$scratch/manifest" "${say[@]}"
kill_node hub
cp "$scratch/manifest" "$hub/org/more/"
start_hub "$hub"
generates org/folder --manifest "$store/org/more/manifest#$signer"
grep -q 'compared with no manifest' "$scratch/run.err" && fail "it was compared, and it says otherwise"
refuses 2 'over http:// can be anybody' "$bin/swarm" generate --model org/folder --manifest "$store/org/more/manifest" "${say[@]}"
rm "$hub/org/more/manifest"
refuses 2 'is not signed by this key' "$bin/swarm" generate --model org/folder --manifest "$scratch/manifest#${signer//[0-8]/9}" "${say[@]}"
sed 's/^\(signed [0-9a-f]* \)./\1x/' "$scratch/manifest" >"$scratch/bad"
refuses 2 'manifest is wrong in line' "$bin/swarm" generate --model org/folder --manifest "$scratch/bad" "${say[@]}"
sed "s/^\(signed \).*/\1$signer $(printf '0%.0s' {1..128})/" "$scratch/manifest" >"$scratch/bad"
refuses 2 'signature of .* is not that of its signer' "$bin/swarm" generate --model org/folder --manifest "$scratch/bad" "${say[@]}"
refuses 2 'models that come from a hub' "$bin/swarm" generate --model "$fixtures/golden/llama" --manifest "$scratch/manifest" "${say[@]}"
succeeds "$bin/swarm" models verify
grep -q 'org/folder@1.* right, 0 B not here' "$scratch/run.out" || fail "the manifest was not kept: $(cat "$scratch/run.out")"
beside=$SWARM_CACHE/models/org--other/$(basename "$ours")/generation_config.json
generates org/other
[ -e "$beside" ] || fail "a file was not fetched without a manifest"
generates org/other --manifest "$scratch/manifest"
[ ! -e "$beside" ] || fail "a file is there that the manifest does not name"
succeeds "$bin/swarm" hash "$hub/org/other" --out "$scratch/more-files"
refuses 2 'generation_config.json of the manifest is no file of org/folder' "$bin/swarm" generate --model org/folder --manifest "$scratch/more-files" --cache "$scratch/cache-more" "${say[@]}"
# What another tool or a call without the manifest got wrong is fetched again, where it can be: files of the snapshot, parts of pieces.
(
  export SWARM_CACHE=$scratch/cache-wrong HF_HOME=$scratch/hf-wrong
  wrong=$HF_HOME/hub/models--org--folder/snapshots/$(basename "$ours")
  mkdir -p "$wrong"
  head -c "$(stat -c %s "$hub/org/folder/model.safetensors")" /dev/zero >"$wrong/model.safetensors"
  generates org/folder --manifest "$scratch/manifest"
  cmp -s "$wrong/model.safetensors" "$hub/org/folder/model.safetensors" || fail "another file is still in the snapshot"
  part=$SWARM_CACHE/models/org--folder/$(basename "$ours")/model.safetensors
  size=$(stat -c %s "$hub/org/folder/model.safetensors")
  rm -rf "$HF_HOME" "$part"
  head -c "$size" /dev/zero >"$part"
  printf '%s %s\n0 1000\n' "$size" "$(sha256sum <"$hub/org/folder/model.safetensors" | cut -d' ' -f1)" >"$part.ranges"
  generates org/folder --manifest "$scratch/manifest"
) || exit 1
cp "$fixtures"/golden/mistral/{config.json,model.safetensors} "$hub/org/more/"
refuses 2 'config.json of the manifest is no file of org/more' "$bin/swarm" generate --model org/more --manifest "$scratch/manifest" "${say[@]}"
[ ! -e "$SWARM_CACHE/models/org--more/$(basename "$ours")/swarm.manifest" ] || fail "the manifest of another model was kept"
# A model that is one file has any name, and the size of the manifest's file.
mkdir "$hub/org/one" && cp "$fixtures/gguf/phi3.gguf" "$hub/org/one/model.gguf"
succeeds "$bin/swarm" hash "$fixtures/gguf/olmo2.gguf" --identity "$scratch/id" --out "$scratch/other-file"
refuses 2 'model.gguf is no file of the manifest' "$bin/swarm" generate --model org/one --manifest "$scratch/other-file" "${say[@]}"
cp "$fixtures"/golden/llama/{config.json,model.safetensors} "$hub/org/more/"
rm -rf "$SWARM_CACHE/models" "$scratch/hf"

# A node that got its blocks from a hub shares them once it has the manifest, and a client takes what it has from the node.
start_node a org/folder all --manifest "$scratch/manifest"
wait_ready a
kill_node hub
wait_until 60 grep -q 'weights shared' "$scratch/a.err"
succeeds "$bin/swarm" generate --cache "$scratch/cache-client" --join "${address[a]}" "${say[@]:0:6}"
cmp -s "$scratch/run.out" "$scratch/expected" || fail "what the node shares computes another text"

# Room is made by removing what was not used for longest, and never what is in use: here the node's model.
refuses 2 'org/folder@1.* is in use' "$bin/swarm" models remove org/folder
start_hub "$hub"
[ "$(stat -c %d /dev/shm)" != "$(stat -c %d "$scratch")" ] || skip "--cache-max: needs /dev/shm in another file system"
export HF_HUB_CACHE=/dev/shm/sn-hub-$$ # of another file system, so whole files stay in ours
generates org/other
generates org/more
kept() { succeeds "$bin/swarm" models --json && query "$scratch/run.out" '" ".join(sorted(m["name"].split("@")[0] for m in d["models"]))'; }
[ "$(kept)" = "org/folder org/more org/other" ] || fail "$(kept)"
mkdir "$hub/org/last" && cp "$hub"/org/more/* "$hub/org/last/"
generates org/other # used again, so org/more is the oldest
generates org/last --cache-max 1500KiB
[ "$(kept)" = "org/folder org/last org/other" ] || fail "--cache-max kept $(kept)"
mkdir "$hub/org/big" && cp "$hub/org/folder/config.json" "$hub/org/big/" # its header takes 7 MiB
{ printf '\0\0\160\0\0\0\0\0' && head -c 8M /dev/zero; } >"$hub/org/big/model.safetensors"
refuses 2 'do not fit into --cache-max 4.0 MiB, of which .* are in use' "$bin/swarm" generate --model org/big --cache-max 4MiB "${say[@]}"
[ "$(kept)" = "org/big org/folder org/last org/other" ] || fail "for what cannot fit, models were removed: kept $(kept)"
stop_node a
last=$SWARM_CACHE/models/org--last
mkdir -p "$last/.removed-$(basename "$ours")/left" # by a process that was killed
succeeds "$bin/swarm" models remove org/last
[ "$(ls -A "$last")" = "$(cd "$last" && ls revision-*)" ] || fail "removed, and there: $(ls -A "$last")"
refuses 2 'do not fit into --cache-max 256.0 KiB' "$bin/swarm" generate --model org/more --cache-max 256KiB "${say[@]}"
[ "$(kept)" = "org/more" ] || fail "--cache-max kept $(kept)"
rm -rf /dev/shm/sn-hub-$$
echo ok
