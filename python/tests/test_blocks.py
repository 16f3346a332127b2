"""Remote blocks with numpy."""

import gc
import json
import struct
import tracemalloc

import numpy as np
import pytest

import swarmnode
from conftest import FIXTURES


DTYPES = {"F32": np.float32, "I64": np.int64}


def tensors(path):
    """The arrays of a safetensors file, by name."""
    data = path.read_bytes()
    n = 8 + struct.unpack("<Q", data[:8])[0]
    entries = {name: e for name, e in json.loads(data[8:n]).items() if name != "__metadata__" and e["dtype"] in DTYPES}
    return {name: np.frombuffer(data[n:][slice(*e["data_offsets"])], DTYPES[e["dtype"]]).reshape(e["shape"]) for name, e in entries.items()}


def golden(name, dtype=np.float32):
    """An array of the reference: PyTorch's numbers for the tiny model."""
    return tensors(FIXTURES / "golden/llama/golden.safetensors")[name].astype(dtype, copy=False)


def close(a, b, tolerance=1e-4):
    return np.abs(np.asarray(a) - b).max() <= tolerance * np.abs(b).max()


def test_every_range_has_the_hidden_states_of_pytorch(tiny):
    blocks = swarmnode.RemoteBlocks(tiny, 0, 4)
    assert len(blocks) == 4 and len(blocks[1:]) == 3 and len(blocks[-1]) == 1 and repr(blocks[1:3][1]).find("2:3") > 0
    assert close(tiny.embed(golden("input_ids", np.int64)), golden("hidden.0"), 1e-6)
    assert close(blocks(golden("hidden.0")), golden("hidden.4"))
    assert close(blocks[1:3](golden("hidden.1")), golden("hidden.3"))
    assert close(tiny.logits(golden("hidden.4")), golden("logits"))
    for wrong in (lambda: blocks[4:], lambda: blocks[::2], lambda: swarmnode.RemoteBlocks(tiny, 3, 9)):
        with pytest.raises(swarmnode.Refused):
            wrong()
    with pytest.raises(IndexError):
        blocks[4]


def test_a_batch_is_its_sequences_here_and_over_nodes(tiny, tiny_here):
    x = np.random.default_rng(0).standard_normal((3, 5, 64), np.float32)
    blocks, here = swarmnode.RemoteBlocks(tiny, 1, 4), swarmnode.RemoteBlocks(tiny_here, 1, 4)
    out = blocks(x)
    assert out.shape == x.shape and np.array_equal(out, here(x))
    assert np.array_equal(out[1], blocks(x[1]))
    ragged = np.concatenate([x[0], x[1, :2], x[2, :1]])
    assert np.array_equal(blocks(ragged, lengths=[5, 2, 1])[5:7], out[1, :2])
    for wrong in (lambda: blocks(x.astype(np.float64)), lambda: blocks(x[..., :63]), lambda: blocks(ragged, lengths=[5, 2])):
        with pytest.raises(swarmnode.Refused):
            wrong()


def test_gradients_are_the_references(tiny):
    ids, hidden = golden("input_ids", np.int64), golden("hidden.4")
    logits = tiny.logits(hidden)[:-1].astype(np.float64)
    p = np.exp(logits - logits.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    p[np.arange(len(ids) - 1), ids[1:]] -= 1
    of_logits = np.concatenate([p / (len(ids) - 1), np.zeros((1, tiny.vocab))]).astype(np.float32)
    blocks = swarmnode.RemoteBlocks(tiny)
    gradient, values = blocks.backward(golden("hidden.0"), tiny.logits_backward(hidden, of_logits))
    assert values.size == 0 and close(gradient, golden("grad_input"))


def test_an_inference_session_continues_and_rewinds(tiny):
    x = np.random.default_rng(1).standard_normal((2, 6, 64), np.float32)
    blocks = swarmnode.RemoteBlocks(tiny, 1, 3)
    expected = blocks(x)
    with blocks.inference_session(max_length=16) as session:
        assert np.array_equal(session.step(x[:, :4]), expected[:, :4])
        assert session.position == 4
        session.step(np.zeros((2, 1, 64), np.float32))
        session.position = 4
        assert np.array_equal(session.step(x[:, 4:]), expected[:, 4:])
        with pytest.raises(swarmnode.Refused):
            session.step(x[0, :1])
        with pytest.raises(swarmnode.Refused):
            session.position = 7


def test_a_result_goes_to_no_other_array_than_one_of_its_shape(tiny_here):
    x = np.random.default_rng(6).standard_normal((3, 64), np.float32)
    read_only = np.zeros((3, 64), np.float32)
    read_only.flags.writeable = False
    wrong = [np.zeros((2, 64), np.float32), np.zeros((3, 64)), np.zeros(192, np.float32), np.zeros((64, 3), np.float32).T,
             np.zeros((6, 64), np.float32)[::2], np.zeros((3, 64), ">f4"), read_only, x.tolist()]
    with tiny_here.session(blocks="1:2") as session:
        for out in wrong:
            with pytest.raises(swarmnode.Refused, match="out is"):
                session.forward(x, 0, out)
        assert not any(np.any(out) for out in wrong[:-1])
        out = np.zeros((3, 64), np.float32)
        assert session.forward(x, 0, out) is out and np.array_equal(out, session.forward(x, 0))


def test_lengths_are_integers_that_are_copied(tiny_here):
    blocks = swarmnode.RemoteBlocks(tiny_here, 0, 2)
    for wrong in ([2**32 + 3], np.array([2**32 + 3]), [4, -1], [1.5, 1.5], [[3]]):
        with pytest.raises(swarmnode.Refused, match="length"):
            blocks(np.ones((3, 64), np.float32), wrong)
    given = np.array([2, 1], np.int32)
    kept = blocks.sequences((3, 64), given)  # for the backward pass
    given[:] = 1000
    assert kept.tolist() == [2, 1]


def test_a_contiguous_array_is_not_copied(tiny, monkeypatch):
    blocks = swarmnode.RemoteBlocks(tiny, 0, 2)
    x = np.random.default_rng(2).standard_normal((8, 64), np.float32)
    seen = []
    forward_at = blocks.forward_at
    monkeypatch.setattr(blocks, "forward_at", lambda n, at, out: (seen.append((at, out)), forward_at(n, at, out)))
    out = blocks(x)
    assert seen == [(x.ctypes.data, out.ctypes.data)]


def allocated(call):
    """The most bytes that Python and numpy held at once for a call, beside what was there before."""
    call()
    gc.collect()
    tracemalloc.start()
    try:
        kept = call()
        return tracemalloc.get_traced_memory()[1], kept
    finally:
        tracemalloc.stop()


def test_a_call_holds_its_result_and_no_copy(tiny_here):
    x = np.random.default_rng(4).standard_normal((2, 256, 64), np.float32)
    of_call = 16 << 10  # lengths, pointers, the thread of the call
    blocks = swarmnode.RemoteBlocks(tiny_here, 0, 1)
    assert allocated(lambda: blocks(x))[0] < x.nbytes + of_call
    assert allocated(lambda: blocks(x.reshape(512, 64), [256, 256]))[0] < x.nbytes + of_call
    assert allocated(lambda: blocks(x[:, ::-1]))[0] > 2 * x.nbytes  # rows that do not follow each other are copied, once
    assert allocated(lambda: blocks.backward(x, x))[0] < x.nbytes + of_call
    with blocks.inference_session(max_length=256) as session:
        def step():
            session.position = 0
            return session.step(x)

        assert allocated(step)[0] < x.nbytes + of_call


def test_512_rows_of_a_real_block_are_not_copied(real):
    x = np.random.default_rng(5).standard_normal((512, 576), np.float32)
    blocks = swarmnode.RemoteBlocks(real, 0, 1)
    assert allocated(lambda: blocks(x))[0] < x.nbytes + (16 << 10)


def test_values_of_lora_are_set_and_read(tiny):
    blocks = swarmnode.RemoteBlocks(tiny, 1, 3, method="lora", rank=2, targets="q,o")
    assert blocks.n_values == 2 * 2 * 2 * (64 + 64)
    x = np.random.default_rng(3).standard_normal((4, 64), np.float32)
    plain = blocks(x)
    assert np.array_equal(plain, swarmnode.RemoteBlocks(tiny, 1, 3)(x))  # B is zero at first
    blocks.values = np.full(blocks.n_values, 0.1, np.float32)
    assert (blocks.values == np.float32(0.1)).all() and not np.array_equal(blocks(x), plain)
    with pytest.raises(swarmnode.Refused):
        blocks.values = np.zeros(3)


def test_sessions_compute_with_the_values_and_a_folder_keeps_them(tiny, tmp_path):
    blocks, x = swarmnode.RemoteBlocks(tiny, 1, 3, method="lora", rank=2), np.random.default_rng(3).standard_normal((4, 64), np.float32)
    blocks.values = np.full(blocks.n_values, 0.1, np.float32)
    expected = blocks(x)
    with blocks.inference_session(max_length=8) as session:
        blocks.values = np.zeros(blocks.n_values, np.float32)  # a session keeps those with which it began
        assert np.array_equal(session.step(x), expected) and not np.array_equal(blocks(x), expected)
    blocks.values = np.full(blocks.n_values, 0.1, np.float32)
    blocks.save_adapter(tmp_path / "kept")
    adapter = blocks.adapter()
    blocks.close()
    for kept in (adapter, swarmnode.Adapter(tiny, tmp_path / "kept")):
        with tiny.session(blocks="1:3", adapter=kept) as session:
            assert np.array_equal(session.forward(x, 0), expected)
    with pytest.raises(swarmnode.Refused, match="is closed"):
        blocks.adapter()
    with pytest.raises(swarmnode.Refused, match="with a method"):
        swarmnode.RemoteBlocks(tiny, 1, 3).save_adapter(tmp_path / "kept")


def test_a_session_keeps_to_the_nodes_of_its_blocks(tiny):
    blocks = swarmnode.RemoteBlocks(tiny, 0, 1, only=["node0"], method="lora", timeout="10s")
    with blocks.inference_session(max_length=8) as session:
        assert {"only": ["node0"], "timeout": "10s"}.items() <= session._given.items()
        session.step(np.zeros((1, 64), np.float32))
    with pytest.raises(swarmnode.RetryElsewhere, match="--only leaves them out"):
        blocks.inference_session(max_length=8, only=["node7"])
