"""Tokenizers trained in a second, on text that is made here."""

import io

import numpy as np
import sentencepiece
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

WORDS = "the memory holds a key and its value until another key takes the slot é ß".split()


def sentences(count=200, seed=0):
    """Lines of random words, the same for a seed."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, 8)) + "." for _ in range(count)]


def byte_level(vocab_size=300, end="<|endoftext|>"):
    """A byte-level BPE of the library `tokenizers`, as GPT-2's; `end` is its first id."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[end],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences(), trainer)
    return tokenizer


def save_json(path, **options):
    """Writes a tokenizer.json; returns its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    byte_level(**options).save(str(path))
    return path


def save_model(path, **options):
    """Writes a SentencePiece model with pieces for bytes, as Mistral's; returns its path."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences()),
        model_writer=model,
        model_type="bpe",
        vocab_size=330,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **options,
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.getvalue())
    return path
