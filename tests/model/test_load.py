"""Loading and saving: what is loaded is proven, what is saved is plain `transformers` and the trained weights."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, GPT2LMHeadModel

from strop.codec.chat import ChatCodec, with_default_template
from strop.core.errors import UsageError
from strop.core.source import ModelSource
from strop.model.attention import NAME, RowsLayout
from strop.model.load import generation_stop_ids, load, prepare, save
from strop.model.policy import Policy
from strop.model.tiny import tiny
from tests.families import FAMILIES

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: build(tmp_path_factory.mktemp(name)) for name, build in FAMILIES.items()}


def log_probs(policy: Policy, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        hidden = policy.hidden(ids, torch.arange(len(ids)), RowsLayout([len(ids)], CPU))
        return policy.head(hidden).double().log_softmax(-1)


def moved(policy: Policy) -> Policy:
    """The policy after something like training: every weight a little elsewhere."""
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.02 * torch.randn(weight.shape, generator=draw).to(weight.dtype))
    return policy


_PLAIN_READER = """
import json, sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
out = {}
for directory in sys.argv[2:]:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(directory), AutoTokenizer.from_pretrained(directory)
    with torch.no_grad():
        logits = model(input_ids=torch.arange(24)[None]).logits[0].double()
    torch.save(logits.log_softmax(-1), directory + "/said.pt")
    talk = [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]
    out[directory] = {
        "text": tokenizer.apply_chat_template(talk, tokenize=False),
        "attention": model.config._attn_implementation,
        "dtype": str(model.dtype),
        "eos": model.generation_config.eos_token_id,
        "strop": [name for name in sys.modules if name.startswith("strop")],
    }
json.dump(out, open(sys.argv[1], "w"))
"""


def test_an_export_is_read_by_plain_transformers_in_a_new_process(saved: dict[str, Path], tmp_path: Path) -> None:
    policies = {"tiny": load(ModelSource(preset="tiny", pieces=("four",)))}
    for name, path in saved.items():
        policy = load(ModelSource(path=str(path)))
        policies[name] = dataclasses.replace(policy, tokenizer=with_default_template(policy.tokenizer)[0])
    ids = torch.arange(24)
    start = {name: log_probs(policy, ids) for name, policy in policies.items()}
    for name, policy in policies.items():
        save(moved(policy), tmp_path / name)
    places = [str(tmp_path / name) for name in policies]
    command = [sys.executable, "-c", _PLAIN_READER, str(tmp_path / "out.json"), *places]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    said = json.loads((tmp_path / "out.json").read_text())
    talk = [{"role": "user", "content": "two and two?"}, {"role": "assistant", "content": "four"}]
    for name, policy in policies.items():
        theirs, here = torch.load(tmp_path / name / "said.pt"), said[str(tmp_path / name)]
        assert (theirs - log_probs(policy, ids)).abs().max().item() < 1e-6
        assert (theirs - start[name]).abs().max().item() > 1e-3  # the weights before training are others
        assert here["text"] == policy.tokenizer.apply_chat_template(talk, tokenize=False)
        assert (here["attention"], here["dtype"], here["strop"]) == ("sdpa", "torch.float32", [])
        assert {here["eos"]} if isinstance(here["eos"], int) else set(here["eos"]) == generation_stop_ids(policy)
        assert NAME not in json.loads((tmp_path / name / "config.json").read_text()).values()


@pytest.mark.parametrize(("name", "tied"), [("qwen3", True), ("gpt2", True), ("llama", False)])
def test_tied_weights_are_written_once(saved: dict[str, Path], tmp_path: Path, name: str, tied: bool) -> None:
    save(load(ModelSource(path=str(saved[name]))), tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert ("lm_head.weight" not in file.keys()) == tied  # noqa: SIM118  (safe_open is no dict)
    again = load(ModelSource(path=str(tmp_path)))
    embedding: Any = again.model.get_input_embeddings()
    assert (again.head.weight is embedding.weight) == tied


def test_weights_are_saved_in_the_dtype_that_was_trained(saved: dict[str, Path], tmp_path: Path) -> None:
    policy = load(ModelSource(path=str(saved["llama"]), dtype="bfloat16"))
    assert policy.head.weight.dtype == torch.bfloat16
    save(policy, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert json.loads((saved["llama"] / "config.json").read_text())["dtype"] == "float32"


def test_ids_beyond_the_tokenizer_are_never_sampled(saved: dict[str, Path]) -> None:
    policy = load(ModelSource(path=str(saved["llama"])))
    assert policy.vocabulary == len(policy.tokenizer) == policy.head.out_features - 11
    assert policy.logits(torch.zeros(1, 32)).shape == (1, policy.vocabulary)
    assert policy.notes == ()


def test_a_tokenizer_with_more_ids_than_the_model_is_noted() -> None:
    model, _ = tiny((), width=16, heads=2)
    _, larger = tiny(("extra", "words"), width=16, heads=2)
    policy = prepare(model, larger)
    assert policy.vocabulary == model.config.vocab_size < len(larger)
    assert len(policy.notes) == 1 and "cannot be used" in policy.notes[0]


def test_every_eos_of_the_generation_config_stops(saved: dict[str, Path]) -> None:
    qwen3 = load(ModelSource(path=str(saved["qwen3"])))
    ends = set(qwen3.tokenizer.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"]))
    assert generation_stop_ids(qwen3) == ends
    assert ChatCodec(qwen3.tokenizer, generation_stop_ids(qwen3)).stop_ids == ends
    llama = load(ModelSource(path=str(saved["llama"])))
    assert generation_stop_ids(llama) == {llama.tokenizer.eos_token_id}
    llama.model.generation_config.eos_token_id = None
    assert generation_stop_ids(llama) == frozenset()


class CountingLayout(RowsLayout):
    """Counts the calls of attention."""

    calls = 0

    def attend(self, *args: Any) -> torch.Tensor:
        self.calls += 1
        return super().attend(*args)


@pytest.mark.parametrize("name", FAMILIES)
def test_checkpointed_layers_see_the_layout_again_and_give_the_same_gradient(saved: dict[str, Path], name: str) -> None:
    gradients: list[dict[str, torch.Tensor]] = []
    calls: list[int] = []
    for checkpointing in (False, True):
        policy = load(ModelSource(path=str(saved[name]), checkpointing=checkpointing))
        layout = CountingLayout([5, 9], CPU)
        ids = torch.arange(14) + 3
        hidden = policy.hidden(ids, torch.cat([torch.arange(5), torch.arange(9)]), layout)
        policy.logits(hidden).logsumexp(-1).sum().backward()
        gradients.append({k: w.grad.clone() for k, w in policy.model.named_parameters() if w.grad is not None})
        calls.append(layout.calls)
    assert calls == [2, 4]
    assert gradients[0].keys() == gradients[1].keys()
    for key, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][key], gradient, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    "path", ["./nowhere", "nowhere", "/nowhere/at/all", "a/b/c", "~/nowhere-at-all", "nowhere/file.gguf", "src/nowhere"]
)
def test_a_missing_path_is_refused_at_once(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="no such file or directory"):
        load(ModelSource(path=path))


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"is no model directory \(it has no config.json\)"):
        load(ModelSource(path=str(tmp_path)))
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match="cannot load"):
        load(ModelSource(path=str(tmp_path)))


def test_exactly_one_source_must_be_named() -> None:
    for source in (ModelSource(), ModelSource(path=".", preset="tiny")):
        with pytest.raises(UsageError, match="either by path or by preset"):
            load(source)


def test_a_device_that_is_not_there_is_refused() -> None:
    absent = "mps" if not torch.backends.mps.is_available() else "cuda"
    with pytest.raises(UsageError, match="available: "):
        load(ModelSource(preset="tiny", device=absent))


def test_saving_over_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(UsageError, match="is a file"):
        save(load(ModelSource(preset="tiny")), tmp_path / "file")
    assert (tmp_path / "file").read_text() == "kept"


def test_loading_leaves_the_model_on_disk_without_strop(saved: dict[str, Path]) -> None:
    policy = load(ModelSource(path=str(saved["gpt2"])))
    assert policy.model.config._attn_implementation == NAME and isinstance(policy.model, GPT2LMHeadModel)
    assert policy.window == 128
    assert AutoModelForCausalLM.from_pretrained(saved["gpt2"]).config._attn_implementation == "sdpa"


def _write_gguf(model: Any, tokenizer: Any, file: Path) -> None:
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")  # transformers reads GGUF only with it
    writer = gguf.GGUFWriter(str(file), "llama")
    config = model.config
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    backend = json.loads(tokenizer.backend_tokenizer.to_str())
    words = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().get)
    special = set(tokenizer.added_tokens_encoder)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([*words, *(f"<pad{i}>" for i in range(config.vocab_size - len(words)))])
    writer.add_token_types([3 if word in special else 1 for word in words] + [3] * (config.vocab_size - len(words)))
    writer.add_token_merges([" ".join(pair) for pair in backend["model"]["merges"]])
    writer.add_bos_token_id(tokenizer.bos_token_id)
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_chat_template(tokenizer.chat_template)
    names = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v"}
    names |= {"self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up"}
    names |= {"mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
    names |= {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    for key, weight in model.state_dict().items():
        values = weight.numpy()
        for old, new in ((r"q_proj", config.num_attention_heads), (r"k_proj", config.num_key_value_heads)):
            if old in key:  # llama.cpp keeps the two halves of a rotary head interleaved
                values = values.reshape(new, 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        key = key.replace("model.layers.", "blk.")
        for old, name in names.items():
            key = key.replace(old, name)
        writer.add_tensor(key, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_loaded_as_the_model_it_was_made_of(saved: dict[str, Path], tmp_path: Path) -> None:
    source = load(ModelSource(path=str(saved["llama"])))
    _write_gguf(source.model, source.tokenizer, tmp_path / "small.gguf")
    policy = load(ModelSource(path=str(tmp_path / "small.gguf")))
    ids = torch.arange(24)
    assert (log_probs(policy, ids) - log_probs(source, ids)).abs().max().item() < 1e-6
    assert policy.tokenizer.chat_template == source.tokenizer.chat_template
    assert (log_probs(moved(policy), ids) - log_probs(source, ids)).abs().max().item() > 1e-3
    save(policy, tmp_path / "plain")
    again = load(ModelSource(path=str(tmp_path / "plain")))
    assert torch.equal(log_probs(again, ids), log_probs(policy, ids))
