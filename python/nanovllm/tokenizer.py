from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

from nanovllm import _core

# Arguments of transformers that choose how ids are packed; this class always returns a list.
_PACKING = ("padding", "truncation", "max_length", "return_tensors", "return_dict")


class Tokenizer:
    """The checkpoint's tokenizer and chat template, with transformers' names and defaults.

    Several threads may use it, also after `LLM.exit()`. Each method raises UserError (a ValueError)
    if the checkpoint has no tokenizer.json, or no chat template where one is needed.
    """

    def __init__(self, core: _core.Tokenizer) -> None:
        self._core = core

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The token ids of a text. Special tokens that are written in it are recognized.
        `add_special_tokens`: also add the tokenizer's own, such as a begin-of-text token."""
        return self._core.encode(text, add_special_tokens)

    def decode(self, token_ids: int | Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of an id or of ids (a list, or anything with tolist()). Ids that no token has
        are left out; bytes that are not UTF-8 become U+FFFD."""
        ids = [token_ids] if isinstance(token_ids, int) else token_ids
        return self._core.decode(ids, skip_special_tokens)

    @overload
    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: Literal[True] = True,
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
        tokenize: Literal[False],
        **kwargs: Any,
    ) -> str: ...

    def apply_chat_template(
        self,
        conversation: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, str]] | None = None,
        *,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> str | list[int]:
        """The prompt for a conversation in OpenAI's format: its token ids, or the text if
        `tokenize` is False.

        `tools`: their JSON schemas. `continue_final_message`: the prompt ends inside the last
        message, so that the model continues it. `kwargs` are variables of the template, such as
        enable_thinking. Raises UserError if the template fails.
        """
        for name in _PACKING:
            if kwargs.pop(name, None):
                raise ValueError(f"{name} is not supported; ids come as a list")
        if kwargs.pop("chat_template", None) is not None:
            raise ValueError("chat_template is not supported; the checkpoint's own is used")
        if continue_final_message and add_generation_prompt:
            raise ValueError("continue_final_message and add_generation_prompt exclude each other")
        if continue_final_message:
            conversation, final = _marked(conversation)
        variables = {
            "messages": conversation,
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
            **kwargs,
        }
        prompt = self._core.render_chat_template(json.dumps(variables, ensure_ascii=False))
        if continue_final_message:
            prompt = _cut(prompt, final)
        return self._core.encode(prompt, False) if tokenize else prompt


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
    raise ValueError("continue_final_message: the last message has no text to continue")


def _cut(prompt: str, final: str) -> str:
    """The prompt up to the mark. As in transformers, spaces at the end of the message stay if the
    template keeps those of messages, which the space at the end of the mark shows."""
    end = prompt.rfind(_MARK.rstrip())
    if end < 0 or final.strip() not in prompt:
        raise ValueError("the template changes the last message; it cannot be continued")
    kept = prompt.startswith(_MARK, end)
    return prompt[:end] if kept else prompt[:end].rstrip()
