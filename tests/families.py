"""Three small model families, built from nothing into a directory, and the tokenizers and templates that tests need."""

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

SENTENCES = (
    "hello world, this is a small text about numbers and words",
    "the user asks, the assistant answers, the tool observes and the system rules",
    "What is two and two? Let me say four. Good. And three and three? That is six.",
)

LLAMA_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] + '<|eot_id|>' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)

# As Qwen3 does it: thinking is dropped before the last user message, and the last turn shows its thinking block.
QWEN3_TEMPLATE = """
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<|im_start|>assistant\\n<think>\\n' + reasoning + '\\n</think>\\n\\n' + content }}
        {%- else %}
            {{- '<|im_start|>assistant\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""


def byte_bpe(special: tuple[str, ...], added: tuple[str, ...] = (), bos: str | None = None) -> Tokenizer:
    """A byte-level BPE trained on a few sentences; `added` tokens are not special; `bos` is put before plain text."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    backend.train_from_iterator(SENTENCES * 3, trainer)
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    backend.add_tokens([AddedToken(token, special=False, normalized=False) for token in added])
    if bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return backend


def hello_tokenizer(template: str) -> PreTrainedTokenizerFast:
    """A tokenizer that knows `he`, `llo` and `hello`, with special tokens `<|user|> <|assistant|> <|tool|> <|end|>`."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    joins = [("h", "e"), ("l", "l"), ("ll", "o"), ("he", "llo")]
    words = [*alphabet, *("".join(pair) for pair in joins)]
    backend = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, joins))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|end|>", "<|stop|>")
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    tokenizer.chat_template = template
    return tokenizer


def _save(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, directory: Path) -> Path:
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def gpt2_family(directory: Path) -> Path:
    """GPT-2 type: learned positions, tied head, dropout in its config, no chat template."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_bpe(("<|endoftext|>",)), eos_token="<|endoftext|>")
    end = tokenizer.eos_token_id
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=128, n_embd=32, n_layer=2, n_head=4, bos_token_id=end, eos_token_id=end
    )
    return _save(_seeded(GPT2LMHeadModel, config), tokenizer, directory)


def llama_family(directory: Path) -> Path:
    """Llama type: grouped key heads, untied head, a template that writes BOS, a tokenizer that adds it too."""
    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    backend = byte_bpe(special, bos="<|begin_of_text|>")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=special[0], eos_token=special[1])
    tokenizer.chat_template = LLAMA_TEMPLATE
    config = LlamaConfig(
        vocab_size=len(tokenizer) + 11,  # padded, as many released heads are
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    return _save(_seeded(LlamaForCausalLM, config), tokenizer, directory)


def qwen3_family(directory: Path) -> Path:
    """Qwen3 type: ChatML that drops old thinking, two eos ids in the generation config."""
    special, added = ("<|endoftext|>", "<|im_start|>", "<|im_end|>"), ("<think>", "</think>", "<tool_response>")
    backend = byte_bpe(special, added)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = QWEN3_TEMPLATE
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=128,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = _seeded(Qwen3ForCausalLM, config)
    model.generation_config.eos_token_id = [tokenizer.eos_token_id, tokenizer.pad_token_id]
    return _save(model, tokenizer, directory)


def _seeded(kind: type[PreTrainedModel], config: object) -> PreTrainedModel:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return kind(config).eval()


FAMILIES = {"gpt2": gpt2_family, "llama": llama_family, "qwen3": qwen3_family}
