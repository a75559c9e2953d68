"""The tokenizer has the names and results of transformers."""

import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from conftest import TINY_TALES

from nanovllm import LLM, Tokenizer

TEXT = "Once upon a time<|im_end|>"


@pytest.fixture
def tokenizer(llm: LLM) -> Tokenizer:
    return llm.tokenizer


def test_special_tokens(tokenizer: Tokenizer) -> None:
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 8168)
    assert (tokenizer.pad_token, tokenizer.pad_token_id) == ("<|endoftext|>", 8166)
    assert tokenizer.bos_token is None and tokenizer.bos_token_id is None
    assert tokenizer.all_special_tokens == ["<|im_end|>", "<|endoftext|>"]
    assert tokenizer.all_special_ids == [8168, 8166]
    with pytest.raises(AttributeError, match="'vocab_files'.*to_transformers"):
        tokenizer.vocab_files  # noqa: B018


def test_calls_give_ids_and_masks(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    assert tokenizer(TEXT) == {"input_ids": ids, "attention_mask": [1] * len(ids)}
    several = tokenizer([TEXT, "A fox"], add_special_tokens=False, padding=False)
    assert several.input_ids == [ids, tokenizer.encode("A fox")]
    assert [len(mask) for mask in several.attention_mask] == [len(i) for i in several["input_ids"]]
    with pytest.raises(ValueError, match="padding.*to_transformers"):
        tokenizer([TEXT], padding=True)
    with pytest.raises(TypeError, match="paddding"):
        tokenizer([TEXT], paddding=True)


def test_conversions(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(TEXT)
    tokens = tokenizer.convert_ids_to_tokens(ids)
    assert (
        tokens == tokenizer.tokenize(TEXT) and tokens[1] == "Ġupon" and tokens[-1] == "<|im_end|>"
    )
    assert tokenizer.convert_ids_to_tokens(np.array(ids)) == tokens  # type: ignore[call-overload]
    assert tokenizer.convert_ids_to_tokens(ids, skip_special_tokens=True) == tokens[:-1]
    assert tokenizer.convert_ids_to_tokens(ids[0]) == tokens[0] == "Once"
    assert tokenizer.convert_tokens_to_ids(tokens) == ids
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") == 8168
    assert tokenizer.convert_tokens_to_ids("no such token") is None
    assert tokenizer.convert_tokens_to_string(tokens) == TEXT
    assert tokenizer.batch_decode([ids, ids[:1]], skip_special_tokens=True) == [TEXT[:-10], "Once"]


def test_vocabulary(tokenizer: Tokenizer) -> None:
    vocab = tokenizer.get_vocab()
    assert len(vocab) == len(tokenizer) == 8192 and tokenizer.vocab_size == 8166
    assert vocab["<|im_end|>"] == 8168 and bool(tokenizer)
    assert all(tokenizer.convert_tokens_to_ids(token) == i for token, i in vocab.items())
    assert json.loads((Path(TINY_TALES) / "tokenizer.json").read_text())["model"][
        "vocab"
    ].items() <= (vocab.items())


def test_transformers_object_is_made_on_request(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match="pip install transformers"):
        llm.get_tokenizer(transformers=True)
    fake = ModuleType("transformers")
    made = type("AutoTokenizer", (), {"from_pretrained": staticmethod(lambda folder: folder)})
    monkeypatch.setattr(fake, "AutoTokenizer", made, raising=False)
    monkeypatch.setitem(sys.modules, "transformers", fake)
    assert llm.get_tokenizer(transformers=True) == TINY_TALES
    assert llm.get_tokenizer() is llm.tokenizer
