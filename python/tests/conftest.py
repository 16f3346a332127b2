"""Nodes and models for the tests. SWARM_BUILD: the folder of the programs; SN_TEST_MODEL: the real model, for text."""

import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import swarmnode

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("SWARM_BUILD", ROOT / "build"))
WITH_US = ["setpriv", "--pdeathsig", "KILL"]  # before a command: it ends when the tests end, also where they are killed
FIXTURES = ROOT / "tests/fixtures"
KV = {"kv_dtype": "f32"}  # of the tiny model: sessions then have the bits of forward passes, which keep float32
F32 = ("--kv-dtype", "f32")


class Nodes:
    """Processes of swarm-node on free ports of the loopback; ended by their ids."""

    def __init__(self, folder):
        self.folder, self.processes, self.addresses = Path(folder), [], []

    def start(self, model, blocks, *more):
        log = self.folder / f"node{len(self.processes)}"
        join = [a for address in self.addresses[:1] for a in ("--join", address)]
        process = subprocess.Popen(
            [*WITH_US, BUILD / "swarm-node", "--model", model, "--blocks", blocks, "--name", f"node{len(self.processes)}",
             "--threads", "1", "--listen", "127.0.0.1:0", "--kv-memory", "64MiB", *join, *more],
            stdout=open(log, "w"), stderr=open(f"{log}.err", "w"), stdin=subprocess.DEVNULL)
        self.processes.append(process)
        until = time.monotonic() + 60
        while "ready: address=" not in log.read_text():
            assert process.poll() is None and time.monotonic() < until, Path(f"{log}.err").read_text()
            time.sleep(0.02)
        self.addresses.append(log.read_text().split("address=")[1].split()[0])
        return self

    def kill(self, which):
        self.processes[which].kill()
        self.processes[which].wait()

    def end(self):
        for process in self.processes:
            process.kill()
            process.wait()


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    """Llama of 4 blocks, 64 floats, 320 tokens, with a tokenizer of single bytes and a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(FIXTURES / "golden/llama" / name, folder)
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]  # bytes that GPT-2's alphabet leaves as they are
    vocab = {chr(b) if b in plain else chr(256 + sum(c not in plain for c in range(b))): b for b in range(256)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None,
                 "decoder": level, "model": {"type": "BPE", "vocab": vocab, "merges": []}}
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "GPT2Tokenizer", "chat_template": "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"}))
    return folder


@pytest.fixture(scope="session")
def nodes(tiny_path):
    with tempfile.TemporaryDirectory() as folder:
        started = Nodes(folder)
        try:
            yield started.start(tiny_path, "0:2", *F32).start(tiny_path, "2:4", *F32)
        finally:
            started.end()


@pytest.fixture(scope="session")
def usual_nodes(tiny_path):
    """Nodes without that option, for programs that name none."""
    with tempfile.TemporaryDirectory() as folder:
        started = Nodes(folder)
        try:
            yield started.start(tiny_path, "0:2").start(tiny_path, "2:4")
        finally:
            started.end()


@pytest.fixture(scope="session")
def usual(usual_nodes, tiny_path):
    return swarmnode.Model(swarmnode.Swarm(join=usual_nodes.addresses), tiny_path, threads=1)


@pytest.fixture(scope="session")
def swarm(nodes):
    return swarmnode.Swarm(join=nodes.addresses)


@pytest.fixture(scope="session")
def tiny(swarm, tiny_path):
    """The model over two nodes."""
    return swarmnode.Model(swarm, tiny_path, threads=1, **KV)


@pytest.fixture(scope="session")
def tiny_here(tiny_path):
    """The model, computed in this process."""
    return swarmnode.Model(None, tiny_path, threads=1, **KV)


@pytest.fixture(scope="session")
def real_path():
    path = os.environ.get("SN_TEST_MODEL")
    if not path:
        pytest.skip("text needs SN_TEST_MODEL")
    return path


@pytest.fixture(scope="session")
def real(real_path):
    return swarmnode.Model(None, real_path, **KV)
