from __future__ import annotations

import importlib
import json
import operator
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, overload

from nanovllm import _core
from nanovllm._files import read_json

Conversation = Sequence[Mapping[str, Any]]

# The special tokens that have a name, in the order of all_special_tokens.
_NAMED = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
# Arguments of transformers that choose how ids are packed; this class always returns lists.
_PACKING = (
    "padding",
    "truncation",
    "max_length",
    "return_tensors",
    "return_token_type_ids",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
)
# transformers' value for a tokenizer_config.json that names no model_max_length.
_NO_LIMIT = int(1e30)


class BatchEncoding(dict[str, Any]):
    """The ids of a text, or of each text in a list."""

    @property
    def input_ids(self) -> Any:
        """list[int], or a list of those."""
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        """A 1 for each id, because nothing is padded."""
        return self["attention_mask"]


class Tokenizer:
    """The checkpoint's tokenizer and chat template, with transformers' names and defaults.

    Several threads may use it, also after `LLM.exit()`. Each method raises UserError (a ValueError)
    if the checkpoint has no tokenizer.json, or no chat template where one is needed. A copy, also
    one by pickle, is loaded from the checkpoint folder again.

    bos_token, eos_token, unk_token, sep_token, pad_token, cls_token and mask_token are texts, and
    bos_token_id, ... their ids; None if the checkpoint's tokenizer_config.json does not name them.
    """

    bos_token: str | None
    eos_token: str | None
    unk_token: str | None
    sep_token: str | None
    pad_token: str | None
    cls_token: str | None
    mask_token: str | None
    bos_token_id: int | None
    eos_token_id: int | None
    unk_token_id: int | None
    sep_token_id: int | None
    pad_token_id: int | None
    cls_token_id: int | None
    mask_token_id: int | None
    chat_template: str | None  #: the text of the checkpoint's template; None if it has none
    model_max_length: int  #: in tokens, as tokenizer_config.json says; nothing depends on it
    padding_side: str

    def __init__(self, core: _core.Tokenizer, folder: str) -> None:
        self._core = core
        self.name_or_path = folder
        config = read_json(Path(folder, "tokenizer_config.json"))
        names = {**read_json(Path(folder, "special_tokens_map.json")), **config}
        for name in _NAMED:
            setattr(self, name, _content(names.get(name)))
        self._additional = [_content(t) for t in names.get("additional_special_tokens") or []]
        self._added_later = config.get("added_tokens_decoder") or {}
        self.chat_template = _chat_template(Path(folder), config)
        self.model_max_length = config.get("model_max_length") or _NO_LIMIT
        self.padding_side = config.get("padding_side", "right")

    def __reduce__(self) -> tuple[Any, ...]:
        return _load, (self.name_or_path,)

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_token_id") and name[:-3] in _NAMED:
            token = getattr(self, name[:-3])
            return None if token is None else self._core.token_to_id(token)
        raise AttributeError(
            f"Tokenizer has no attribute '{name}'; to_transformers() makes an object that has all "
            "of transformers' attributes"
        )

    def __call__(
        self,
        text: str | Iterable[str],
        add_special_tokens: bool = True,
        *,
        return_attention_mask: bool | None = None,
        **packing: Any,
    ) -> BatchEncoding:
        """{"input_ids", "attention_mask"}: two lists, or two lists of lists if `text` is a list.
        `return_attention_mask`: False leaves the second one out."""
        _refuse_packing(packing)
        if packing:
            raise TypeError(f"unknown argument {next(iter(packing))!r}")
        texts = [text] if isinstance(text, str) else text
        lists = [self.encode(one, add_special_tokens) for one in texts]
        encoding = BatchEncoding(input_ids=lists)
        if return_attention_mask is None or return_attention_mask:
            encoding["attention_mask"] = [[1] * len(ids) for ids in lists]
        if isinstance(text, str):
            return BatchEncoding({name: values[0] for name, values in encoding.items()})
        return encoding

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Special tokens that are written in it are recognized.
        `add_special_tokens`: also add the tokenizer's own, such as a begin-of-text token."""
        return self._core.encode(text, add_special_tokens)

    @overload
    def decode(
        self,
        token_ids: int | Sequence[int],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str: ...

    @overload
    def decode(
        self,
        token_ids: Sequence[Sequence[int]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]: ...

    def decode(
        self,
        token_ids: int | Sequence[int] | Sequence[Sequence[int]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> str | list[str]:
        """The text of an id or of ids (a list, or anything with tolist()), or a list with the text
        of each list of ids. Ids that no token has are left out; bytes that are not UTF-8 become
        U+FFFD. `clean_up_tokenization_spaces` has no effect, as in transformers for BPE."""
        ids: Any = token_ids.tolist() if hasattr(token_ids, "tolist") else token_ids
        if isinstance(ids, (list, tuple)) and len(ids) > 0 and isinstance(ids[0], (list, tuple)):
            return self.batch_decode(ids, skip_special_tokens)
        return self._core.decode(
            [int(ids)] if isinstance(ids, Integral) else ids, skip_special_tokens
        )

    def batch_decode(
        self,
        sequences: Iterable[Sequence[int]],
        skip_special_tokens: bool = False,
        clean_up_tokenization_spaces: bool | None = None,
    ) -> list[str]:
        """The text of each sequence of ids."""
        return [self.decode(ids, skip_special_tokens) for ids in sequences]

    def tokenize(self, text: str, add_special_tokens: bool = False) -> list[str]:
        """The tokens of a text, as the vocabulary spells them."""
        return self.convert_ids_to_tokens(self.encode(text, add_special_tokens))

    @overload
    def convert_ids_to_tokens(self, ids: int, skip_special_tokens: bool = False) -> str: ...

    @overload
    def convert_ids_to_tokens(
        self, ids: Sequence[int], skip_special_tokens: bool = False
    ) -> list[str]: ...

    def convert_ids_to_tokens(
        self, ids: int | Sequence[int], skip_special_tokens: bool = False
    ) -> str | list[str]:
        """Tokens as the vocabulary spells them ("Ġthe"); None for an id that no token has."""
        if not isinstance(ids, Iterable):
            return self._tables[2].get(operator.index(ids))  # type: ignore[return-value]
        left_out = set(self.all_special_ids) if skip_special_tokens else ()
        indices = [operator.index(i) for i in ids]
        return [self._tables[2].get(i) for i in indices if i not in left_out]  # type: ignore[misc]

    @overload
    def convert_tokens_to_ids(self, tokens: str) -> int: ...

    @overload
    def convert_tokens_to_ids(self, tokens: list[str] | tuple[str, ...]) -> list[int]: ...

    def convert_tokens_to_ids(self, tokens: str | list[str] | tuple[str, ...]) -> int | list[int]:
        """The ids of tokens as the vocabulary spells them; for an unknown token that of unk_token,
        or None if there is none."""
        if isinstance(tokens, str):
            found = self._core.token_to_id(tokens)
            return self.unk_token_id if found is None else found  # type: ignore[return-value]
        return [self.convert_tokens_to_ids(token) for token in tokens]

    def convert_tokens_to_string(self, tokens: list[str] | tuple[str, ...]) -> str:
        """The text that the tokens stand for."""
        return self.decode(self.convert_tokens_to_ids(tokens))

    def get_vocab(self) -> dict[str, int]:
        """The ids of all tokens, added ones included."""
        return self._tables[1]

    def get_added_vocab(self) -> dict[str, int]:
        """The ids of the added tokens, in their order."""
        return dict(sorted(self._tables[3].items(), key=lambda item: item[1]))

    @property
    def vocab_size(self) -> int:
        """How many tokens the vocabulary has without the added ones."""
        return self._tables[0]

    def __len__(self) -> int:
        """How many tokens there are, added ones included."""
        return len(self._tables[1])

    def __bool__(self) -> bool:
        return True

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The special tokens that have a name, by their names."""
        return {name: token for name in _NAMED if (token := getattr(self, name)) is not None}

    @property
    def all_special_tokens(self) -> list[str]:
        """The special tokens that tokenizer_config.json names."""
        tokens = [getattr(self, name) for name in _NAMED] + self._additional
        return list(dict.fromkeys(token for token in tokens if token is not None))

    @property
    def all_special_ids(self) -> list[int]:
        """Their ids."""
        return self.convert_tokens_to_ids(self.all_special_tokens)

    def to_transformers(self) -> Any:
        """The same tokenizer as an object of the package transformers."""
        try:
            transformers = importlib.import_module("transformers")
        except ImportError as error:
            raise ImportError(
                "transformers is not installed; `pip install transformers` installs it"
            ) from error
        return transformers.AutoTokenizer.from_pretrained(self.name_or_path)

    @cached_property
    def _tables(self) -> tuple[int, dict[str, int], dict[int, str], dict[str, int]]:
        """How many tokens the vocabulary has without the added ones; the ids of all tokens; the
        tokens by their ids; the ids of the added tokens."""
        file = Path(self.name_or_path, "tokenizer.json")
        if not file.exists():
            raise _core.UserError(f"{self.name_or_path}: no tokenizer.json")
        content = json.loads(file.read_bytes())
        vocab: dict[str, int] = dict(content["model"]["vocab"])
        num_base_tokens = len(vocab)
        added = {token["content"]: token["id"] for token in content.get("added_tokens") or []}
        added.update((token["content"], int(i)) for i, token in self._added_later.items())
        vocab.update(added)
        return num_base_tokens, vocab, {i: token for token, i in vocab.items()}, added

    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tokenize: Literal[True] = True,
        return_dict: Literal[False] = False,
        **kwargs: Any,
    ) -> list[int]: ...

    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tokenize: Literal[False],
        return_dict: bool = False,
        **kwargs: Any,
    ) -> str: ...

    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tokenize: bool = True,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any: ...

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]] | Sequence[Sequence[Mapping[str, Any]]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tokenize: bool = True,
        return_dict: bool = False,
        **kwargs: Any,
    ) -> Any:
        """The prompt for a conversation in OpenAI's format: its token ids, or the text if
        `tokenize` is False. For a list of conversations it is a list of these. With `return_dict`
        the ids come as `__call__` returns them.

        `tools`: their JSON schemas. `continue_final_message`: the prompt ends inside the last
        message, so that the model continues it. `chat_template`: the text of a Jinja template to
        use instead of the checkpoint's. `kwargs` are variables of the template, such as
        enable_thinking. Raises UserError if the template fails.
        """
        _refuse_packing(kwargs)
        if continue_final_message and add_generation_prompt:
            raise _core.UserError(
                "continue_final_message and add_generation_prompt exclude each other"
            )
        variables = {
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        given: Any = conversation
        is_one = len(given) == 0 or not isinstance(given[0], (list, tuple))
        prompts = [
            self._render(one, variables, chat_template, continue_final_message)
            for one in ([given] if is_one else given)
        ]
        text: Any = prompts[0] if is_one else prompts
        if not tokenize:
            return text
        encoding = self(text, add_special_tokens=False)
        return encoding if return_dict else encoding.input_ids

    def _render(
        self,
        conversation: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        chat_template: str | None,
        continues: bool,
    ) -> str:
        if continues:
            conversation, final = _marked(conversation)
        variables = {"messages": conversation, **variables}
        if chat_template is None:
            prompt = self._core.render_chat_template(json.dumps(variables, ensure_ascii=False))
        else:
            variables = {**self.special_tokens_map, **variables}
            prompt = _core.render(chat_template, json.dumps(variables, ensure_ascii=False))
        return _cut(prompt, final) if continues else prompt


def _load(folder: str) -> Tokenizer:
    return Tokenizer(_core.load_tokenizer(folder), folder)


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """The text of the checkpoint's template; of several ones, the one named "default"."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8", errors="replace")
    template = config.get("chat_template")
    if isinstance(template, list):
        named = {one.get("name"): one.get("template") for one in template if isinstance(one, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else None


_MARK = "\ue000end of the last message\ue000 "


def _marked(conversation: Sequence[Mapping[str, Any]]) -> tuple[list[Mapping[str, Any]], str]:
    """The conversation with a mark at the end of the last text of its last message; that text."""
    final = dict(conversation[-1]) if conversation else {}
    content = final.get("content")
    if isinstance(content, str):
        final["content"] = content + _MARK
        return [*conversation[:-1], final], content
    parts = list(content) if isinstance(content, list | tuple) else []
    for i, part in reversed(list(enumerate(parts))):
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts[i] = {**part, "text": part["text"] + _MARK}
            final["content"] = parts
            return [*conversation[:-1], final], part["text"]
    raise _core.UserError("continue_final_message: the last message has no text to continue")


def _cut(prompt: str, final: str) -> str:
    """The prompt up to the mark. As in transformers, spaces at the end of the message stay if the
    template keeps those of messages, which the space at the end of the mark shows."""
    end = prompt.rfind(_MARK.rstrip())
    if end < 0 or final.strip() not in prompt:
        raise _core.UserError("the template changes the last message; it cannot be continued")
    kept = prompt.startswith(_MARK, end)
    return prompt[:end] if kept else prompt[:end].rstrip()


def _refuse_packing(arguments: dict[str, Any]) -> None:
    """Removes arguments that ask for nothing, such as padding=False."""
    for name in _PACKING:
        if arguments.pop(name, None):
            raise _core.UserError(
                f"{name} is not supported; ids come as a list. to_transformers() makes "
                "a tokenizer that has it"
            )


def _content(token: Any) -> str | None:
    """A special token as a text; the files also write it as an object."""
    return token.get("content") if isinstance(token, dict) else token
