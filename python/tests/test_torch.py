"""Remote blocks as PyTorch modules: PyTorch's own gradients, and the losses of `swarm tune`."""

import json
import subprocess
import warnings

import numpy as np
import pytest

import swarmnode
from conftest import BUILD
from test_blocks import close, golden, tensors
from test_examples import run as run_example

torch = pytest.importorskip("torch")
nn = pytest.importorskip("swarmnode.nn")


def test_autograd_gives_the_gradients_of_pytorch(tiny):
    ids = torch.from_numpy(golden("input_ids", np.int64).copy())
    hidden = nn.embed(tiny, ids).requires_grad_()
    low, high = nn.RemoteSequential(tiny, 0, 1), nn.RemoteSequential(tiny, 1)  # a part of what a node serves
    logits = nn.logits(tiny, high(low(hidden)))
    loss = torch.nn.functional.cross_entropy(logits[:-1], ids[1:])
    loss.backward()
    assert abs(loss.item() - golden("loss").item()) < 1e-5
    assert close(hidden.grad, golden("grad_input"))


def test_gradients_have_the_bits_of_the_c_functions(tiny):
    module = nn.RemoteSequential(tiny, 1, 4, method="lora", rank=3, targets="all")
    with torch.no_grad():
        module.values.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weight = torch.randn(2, 5, 64, generator=torch.Generator().manual_seed(2))
    out = module(x)
    (out * weight).sum().backward()
    blocks = swarmnode.RemoteBlocks(tiny, 1, 4, method="lora", rank=3, targets="all")
    blocks.values = module.values.detach().numpy()
    assert np.array_equal(blocks(x.detach().numpy()), out.detach().numpy())
    gradient, values = blocks.backward(x.detach().numpy(), weight.numpy())
    assert np.array_equal(gradient, x.grad.numpy()) and np.array_equal(values, module.values.grad.numpy())


def test_gradients_are_float32_whatever_the_default_is(tiny):
    module = nn.RemoteSequential(tiny, 0, 1, method="lora")
    gradients = []
    for dtype in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(dtype)
        try:
            module.values.grad = None
            module(torch.ones(2, 64, dtype=torch.float32)).sum().backward()
        finally:
            torch.set_default_dtype(torch.float32)
        gradients.append(module.values.grad)
    assert gradients[1].dtype == torch.float32 and torch.equal(*gradients)


def test_the_gradient_belongs_to_the_values_of_the_forward_pass(tiny):
    module = nn.RemoteSequential(tiny, 0, 1, method="lora")
    out = module(torch.ones(2, 64))
    with torch.no_grad():
        module.values += 1
    with pytest.raises(RuntimeError, match="modified"):
        out.sum().backward()


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("given", [{"method": "lora", "rank": 2, "targets": "k,down"}, {"method": "deep-prompt", "virtual_tokens": 3}])
def test_parts_of_the_values_have_names(tiny, given, first):
    module = nn.RemoteSequential(tiny, first, 3, **given)
    parts = dict(module.named_values())
    assert sum(p.numel() for p in parts.values()) == module.blocks.n_values
    if given["method"] == "lora":
        assert parts["1.k.B"].shape == (32, 2) and parts["2.down.A"].shape == (2, 96)
        assert (parts["1.k.B"] == 0).all() and (parts["2.down.B"] == 0).all() and (parts["1.k.A"] != 0).all()


@pytest.mark.parametrize("given", [{"method": "lora"}, {"method": "deep-prompt", "virtual_tokens": 3}])
def test_a_session_computes_with_the_values_as_they_are(tiny, given):
    module, x = nn.RemoteSequential(tiny, 1, 3, **given), torch.randn(2, 6, 64, generator=torch.Generator().manual_seed(1))
    plain = module(x)
    for seed in (2, 3):
        with torch.no_grad():
            module.values.normal_(std=0.1, generator=torch.Generator().manual_seed(seed))
        with module.inference_session(max_length=8) as session, module.blocks.inference_session(max_length=8) as same:
            out = torch.cat([session.step(x[:, :4]), session.step(x[:, 4:])], 1)
            assert torch.equal(out, module(x)) and torch.equal(same.step(x), out) and not torch.equal(out, plain)


def test_lora_of_some_blocks_is_an_adapter_to_peft(tiny, tiny_path, tmp_path):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    module = nn.RemoteSequential(tiny, 1, 3, method="lora", rank=3, alpha=5, targets="all")
    with torch.no_grad():
        module.values.normal_(std=0.1, generator=torch.Generator().manual_seed(0))
    module.save_adapter(tmp_path / "adapter")
    ids = torch.from_numpy(golden("input_ids", np.int64).copy())
    hidden = nn.RemoteSequential(tiny, 3, 4)(module(nn.RemoteSequential(tiny, 0, 1)(nn.embed(tiny, ids))))
    logits = nn.logits(tiny, hidden).detach().numpy()
    with tiny.session(adapter=swarmnode.Adapter(tiny, tmp_path / "adapter")) as session:
        assert np.array_equal(session.step(ids), logits)
    plain = transformers.AutoModelForCausalLM.from_pretrained(tiny_path, torch_dtype=torch.float32)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*(missing|unexpected).*")
        theirs = peft.PeftModel.from_pretrained(plain, tmp_path / "adapter").eval()
    assert close(theirs(ids[None]).logits[0].detach(), logits) and not close(golden("logits"), logits)


def test_virtual_tokens_have_the_shape_of_the_blocks(tiny, tmp_path):
    blocks = nn.RemoteSequential(tiny, method="prompt", virtual_tokens=3)
    assert blocks.values is None and list(blocks.named_values()) == []
    for wrong in (torch.zeros(2, 64), torch.zeros(3, 63), torch.zeros(3, 64, dtype=torch.bfloat16).double(), None):
        with pytest.raises(swarmnode.Refused, match="virtual tokens|hidden states"):
            blocks.save_adapter(tmp_path, wrong)
    with pytest.raises(swarmnode.Refused, match="0 virtual tokens"):
        nn.RemoteSequential(tiny, method="lora").adapter(torch.zeros(3, 64))


def test_what_is_not_float32_is_refused(tiny):
    module = nn.RemoteSequential(tiny)
    with pytest.raises(swarmnode.Refused, match=r"float\(\)"):
        module(torch.zeros(2, 64, dtype=torch.bfloat16))
    with torch.no_grad(), module.inference_session(8) as session:
        assert torch.equal(session.step(torch.ones(1, 2, 64)), module(torch.ones(1, 2, 64)))


def test_a_loop_in_pytorch_has_the_losses_of_swarm_tune(tiny_path, nodes, tmp_path):
    texts = ["the quick brown fox jumps", "over the lazy dog and runs away", "a short one", "all work and no play makes"]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    subprocess.run([BUILD / "swarm", "tune", "--model", tiny_path, "--local", "all", "--data", tmp_path / "texts.jsonl",
                    "--batch", "4", "--steps", "12", "--schedule", "constant", "--out", tmp_path / "tuned"],
                   check=True, capture_output=True, timeout=120)
    rows = (tmp_path / "tuned/loss.csv").read_text().split()
    expected = [float(row.split(",")[1]) for row in rows[1:]]
    out = run_example("tune.py", tiny_path, tmp_path / "texts.jsonl", "12", tmp_path / "own", nodes.addresses[0])
    losses = [float(word) for word in out.split()[1::2]]
    assert len(losses) == len(expected) == 12 and expected[-1] < expected[0] - 0.01
    assert np.abs(np.subtract(losses, expected)).max() < 1e-5
    own, theirs = (tensors(tmp_path / f / "adapter_model.safetensors") for f in ("own", "tuned"))
    assert own.keys() == theirs.keys() and all(close(own[name], theirs[name], 0.01) for name in own)


def test_a_loop_over_remote_blocks_has_the_losses_of_one_over_the_same_weights_in_pytorch(tiny, tiny_path):
    transformers, peft = pytest.importorskip("transformers"), pytest.importorskip("peft")
    remote = nn.RemoteSequential(tiny, method="lora", rank=4, alpha=8, targets="q,v", seed=3)
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    local = peft.get_peft_model(transformers.AutoModelForCausalLM.from_pretrained(tiny_path, torch_dtype=torch.float32), config)
    with torch.no_grad():
        for name, value in remote.named_values():
            block, matrix, part = name.split(".")
            attention = local.base_model.model.model.layers[int(block)].self_attn
            getattr(getattr(attention, f"{matrix}_proj"), f"lora_{part}")["default"].weight.copy_(value)
    ids = torch.tensor(tiny.tokenizer.encode("the quick brown fox jumps over the lazy dog and runs away"))
    hidden = nn.embed(tiny, ids)

    def train(logits_of, parameters):
        optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0)
        for _ in range(12):
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(logits_of()[:-1], ids[1:])
            loss.backward()
            optimizer.step()
            yield loss.item()

    ours = list(train(lambda: nn.logits(tiny, remote(hidden)), remote.parameters()))
    theirs = list(train(lambda: local(ids[None]).logits[0], [p for p in local.parameters() if p.requires_grad]))
    assert ours[-1] < ours[0] - 0.01
    assert np.abs(np.subtract(ours, theirs)).max() < 1e-5


def test_a_classifier_learns(tiny_path, nodes, tmp_path):
    examples = [{"text": t, "label": label} for label, ts in
                (("greeting", ["hello there", "hi you", "good day", "hello hello"]), ("farewell", ["bye", "see you", "good night", "leaving"]))
                for t in ts]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(e) + "\n" for e in examples))
    assert run_example("classify.py", tiny_path, tmp_path / "texts.jsonl", nodes.addresses[0]) == "100% of 8 texts\n"
