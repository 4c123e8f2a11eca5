"""A model and a tokenizer built from nothing, for tests, tutorials and toy worlds. Invariant: `decode(encode(x)) == x`,
unless the vocabulary is closed.

Every text can be written: pieces of the world as one token each, printable ASCII by character, all else by its UTF-8
bytes. A closed vocabulary has the pieces alone: hundreds of tokens that a world never needs would drown an entropy bonus
in noise. Nothing is downloaded, and the weights depend on the arguments only.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# (transformers, tokenizers and torch are partly untyped)

from collections.abc import Sequence

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from strop.core.errors import UsageError

END, PAD = "<|end|>", "<|pad|>"
SPECIAL = ("<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", END, PAD)

_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)

_UNKNOWN = "<unk>"
_BYTES = tuple(f"<0x{byte:02X}>" for byte in range(256))
_CHARACTERS = ("\n", *map(chr, range(32, 127)))

# The best split has the highest sum: few pieces beat many characters, and spelling out beats every byte piece, so that
# the text "<0x41>" stays six characters.
_PIECE, _CHARACTER, _NEVER = -1.0, -10.0, -1000.0


def tiny(
    pieces: Sequence[str],
    width: int = 64,
    layers: int = 2,
    heads: int = 4,
    context: int = 512,
    seed: int = 0,
    closed: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A small Llama with random weights (float32, tied embeddings) and a tokenizer for it.

    Args:
        pieces: strings worth one token each; they may hold spaces.
        width: hidden size, a multiple of 2 x heads. The MLP is 4 x width.
        layers, heads: depth and attention heads.
        context: longest sequence.
        seed: names the initial weights; the global random state is left alone.
        closed: no other tokens than the pieces; all else is `<unk>`.

    Raises:
        UsageError: sizes that do not fit, or a piece that is empty or looks like a special or byte token.
    """
    if min(width, layers, heads, context) < 1 or width % (2 * heads):
        raise UsageError(
            f"width={width}, layers={layers}, heads={heads}, context={context}: all must be positive and width a "
            f"multiple of 2 x heads. Try width={2 * max(heads, 1) * 8}."
        )
    tokenizer = _tokenizer(pieces, closed)
    ids = tokenizer.get_vocab()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=context,
        initializer_range=width**-0.5,  # the usual 0.02 is far too small for a narrow model: it barely learns
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=ids[END],
        pad_token_id=ids[PAD],
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = LlamaForCausalLM(config)
    return model.eval(), tokenizer


def _tokenizer(pieces: Sequence[str], closed: bool) -> PreTrainedTokenizerFast:
    reserved = {_UNKNOWN, *_BYTES, *SPECIAL}
    wrong = [piece for piece in pieces if not piece or piece in reserved or any(s in piece for s in SPECIAL)]
    if wrong:
        raise UsageError(f"pieces {wrong} are empty or look like special tokens; leave them out")
    characters, rest = ((), ()) if closed else (_CHARACTERS, _BYTES)
    vocabulary = [(token, _NEVER) for token in (_UNKNOWN, *rest)]
    vocabulary += [(token, _CHARACTER) for token in characters]
    vocabulary += [(token, _PIECE) for token in dict.fromkeys(pieces) if token not in characters]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=not closed))
    backend.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])  # type: ignore[assignment]  # stub
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=END,
        pad_token=PAD,
        clean_up_tokenization_spaces=False,
        model_max_length=2**31,  # the model's window is config.max_position_embeddings
    )
    tokenizer.chat_template = _TEMPLATE
    return tokenizer
