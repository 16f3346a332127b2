"""For test_quantize.sh.

    quantised_files.py imatrix SWARM MODEL OUT: an importance matrix for the model, in the form without metadata that llama-quantize reads
    quantised_files.py near URL OUT.safetensors IDS: how far the last logits that `swarm forward` wrote are from those of a llama-server,
        as log-probabilities: root of the mean square, over that of the server's around their mean
"""
import json, math, struct, subprocess, sys, urllib.request


def write_imatrix(swarm, model, out):
    about = json.loads(subprocess.run([swarm, "inspect", "--model", model, "--json", "--tensors"], capture_output=True, check=True).stdout)
    with open(out, "wb") as f:
        entries = [t for t in about["tensors"] if "norm" not in t["name"]]
        f.write(struct.pack("<i", len(entries)))
        for t in entries:
            n = t["shape"][-1] * (about["hparams"]["n_experts"] if "_exps" in t["name"] else 1)
            values = [0.1 + (i * 7919 % 101) / 50 for i in range(n)]
            name = t["name"].encode()
            f.write(struct.pack("<i", len(name)) + name + struct.pack("<ii%df" % n, 1, n, *values))


def last_logits(path):
    with open(path, "rb") as f:
        header = json.loads(f.read(struct.unpack("<Q", f.read(8))[0]))
        rows, width = header["logits"]["shape"]
        f.seek(header["logits"]["data_offsets"][0] + 4 * width * (rows - 1), 1)
        return struct.unpack("<%df" % width, f.read(4 * width))


def near(url, path, ids):
    ours = last_logits(path)
    top = max(ours)
    total = top + math.log(sum(math.exp(x - top) for x in ours))
    body = {"prompt": json.load(open(ids)), "n_predict": 1, "n_probs": len(ours), "temperature": 0, "cache_prompt": False,
            "logit_bias": [[34, 100]]}  # a letter is taken, of whole bytes; what is compared comes before that
    request = urllib.request.Request(url + "/completion", json.dumps(body).encode(), {"Content-Type": "application/json"})
    reply = json.load(urllib.request.urlopen(request, timeout=60))
    theirs = {t["id"]: t["logprob"] for t in reply["completion_probabilities"][0]["top_logprobs"]}
    assert len(theirs) > len(ours) // 2, "the server gave %d of %d" % (len(theirs), len(ours))
    mean = sum(theirs.values()) / len(theirs)
    spread = math.sqrt(sum((x - mean) ** 2 for x in theirs.values()) / len(theirs))
    off = math.sqrt(sum((ours[i] - total - x) ** 2 for i, x in theirs.items()) / len(theirs))
    print("%.4f" % (off / spread))


{"imatrix": write_imatrix, "near": near}[sys.argv[1]](*sys.argv[2:])
