"""The tokenizer has the names and results of transformers."""

import copy
import json
import pickle
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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
    assert tokenizer(TEXT, return_attention_mask=False) == {"input_ids": ids}
    assert tokenizer([TEXT], return_attention_mask=False) == {"input_ids": [ids]}
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


def test_lists_of_lists_are_decoded_to_a_list(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([[1], [2]]) == tokenizer.decode(np.array([[1], [2]])) == ['"', "#"]
    assert tokenizer.decode([]) == tokenizer.decode([1], clean_up_tokenization_spaces=False)[1:]
    assert tokenizer.decode(np.int64(1)) == '"'
    assert tokenizer.batch_decode([[1]], clean_up_tokenization_spaces=False) == ['"']


def test_several_conversations_are_rendered_to_a_list(tokenizer: Tokenizer) -> None:
    chat = [{"role": "user", "content": "Hi"}]
    text = "<|im_start|>user\nHi<|im_end|>\n"
    ids = tokenizer.encode(text)
    mask = [1] * len(ids)
    for tokenize, one in ((False, text), (True, ids)):
        for given, expected in ((chat, one), ([chat], [one]), ((chat, chat), [one, one])):
            result: Any = tokenizer.apply_chat_template(given, tokenize=tokenize)
            assert result == expected
            given_dict = tokenizer.apply_chat_template(given, tokenize=tokenize, return_dict=True)
            assert (given_dict.input_ids if tokenize else given_dict) == expected
    given_dict = tokenizer.apply_chat_template([chat, chat], return_dict=True)
    assert given_dict == {"input_ids": [ids, ids], "attention_mask": [mask, mask]}


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda t: pickle.loads(pickle.dumps(t))]
)
def test_a_copy_works_alike(tokenizer: Tokenizer, copied: Any) -> None:
    other = copied(tokenizer)
    chat = [{"role": "user", "content": TEXT}]
    assert other.apply_chat_template(chat) == tokenizer.apply_chat_template(chat)
    assert other.eos_token_id == 8168 and other.name_or_path == tokenizer.name_or_path
    assert other.convert_tokens_to_ids("<|im_end|>") == 8168


def test_attributes_are_those_of_the_files(tokenizer: Tokenizer) -> None:
    config = json.loads((Path(TINY_TALES) / "tokenizer_config.json").read_text())
    assert tokenizer.chat_template == config["chat_template"]
    assert (tokenizer.model_max_length, tokenizer.padding_side) == (2048, "right")
    assert tokenizer.special_tokens_map == {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}
    added = tokenizer.get_added_vocab()
    assert len(added) == 26 and list(added.items())[0] == ("<|endoftext|>", 8166)
    assert list(added.values()) == list(range(8166, 8192))


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
