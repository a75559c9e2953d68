from __future__ import annotations

import atexit
import inspect
import operator
import os
import weakref
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from nanovllm import _core
from nanovllm._bar import Bar
from nanovllm._unsupported import neutral_values, refuse
from nanovllm.inputs import Prompt, TokenIds, TokensPrompt, split_prompt, to_prompts
from nanovllm.options import (
    OPTIONS_HELP,
    LLMOptions,
    to_engine_fields,
    to_generation_config,
    with_given_names,
)
from nanovllm.outputs import EngineStats, RequestOutput, StreamPiece
from nanovllm.sampling_params import SamplingParams
from nanovllm.tokenizer import Conversation, Tokenizer

if TYPE_CHECKING:
    from types import TracebackType

    from typing_extensions import Self, Unpack

# How often Python checks for Ctrl-C, and the progress bar is updated, while the engine works.
_SECONDS_BETWEEN_LOOKS = 0.1


class LLM:
    """A loaded model that generates text.

    Several threads may use it; their requests run in one batch. Raises UserError (a ValueError) for
    a wrong value, TypeError for a wrong type, and EngineDead (a RuntimeError) if the engine has
    failed, `exit` was called, or this process was forked from the one that made the LLM. `exit`,
    the end of a `with` block and the deletion of the last reference free the model's memory and its
    GPU at once.
    """

    tokenizer: Tokenizer  #: can be used after `exit` too

    def __init__(self, model: str | os.PathLike[str], **kwargs: Unpack[LLMOptions]) -> None:
        """Loads a model: a checkpoint folder in Hugging Face layout, or the id of a model on the
        Hugging Face hub, "ORG/NAME[@REVISION]", which is found in the Hugging Face cache or
        downloaded into it. `kwargs` are the options that help(LLM) lists, and two about
        `get_default_sampling_params`: generation_config is "auto" for the checkpoint's values,
        "vllm" for none, or the folder of a generation_config.json; override_generation_config is a
        dictionary of values in place of those.

        It gives a warning for an unknown option, and for a max_model_len above the model's own,
        which is then used. vLLM's options that would change the results are refused. Others have no
        effect, which logging.getLogger("nanovllm") says as INFO.
        """
        if not isinstance(model, (str, bytes, os.PathLike)):
            raise TypeError(
                f"model is {model!r:.60}; it must be the path of a checkpoint folder or the id of a "
                "model"
            )
        name = os.fsdecode(model)
        folder = _core.find_model(
            name,
            kwargs.get("local_files_only", False) is True,
            kwargs.get("load_format") != "dummy",
            kwargs.get("revision") or "",
            os.fspath(kwargs.get("download_dir") or ""),
        )
        fields = to_engine_fields(name, folder, kwargs)
        self._generation_config = to_generation_config(folder, kwargs)
        try:
            self._engine = _core.Engine(folder, fields)
        except (TypeError, ValueError) as error:
            raise with_given_names(error, kwargs) from None
        self._added = _core.inbox(False)  # for the requests of add_request
        self.tokenizer = Tokenizer(self._engine.tokenizer(), folder)
        _alive.add(self)

    @overload
    def generate(
        self,
        prompts: Prompt | Iterable[Prompt] | None = None,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        prompt_token_ids: TokenIds | Iterable[TokenIds] | None = None,
        stream: Literal[False] = False,
        **unsupported: Sequence[int] | None,
    ) -> list[RequestOutput]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Iterable[Prompt] | None = None,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        prompt_token_ids: TokenIds | Iterable[TokenIds] | None = None,
        stream: Literal[True],
        **unsupported: Sequence[int] | None,
    ) -> Generator[StreamPiece, None, None]: ...

    @overload
    def generate(
        self,
        prompts: Prompt | Iterable[Prompt] | None = None,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        prompt_token_ids: TokenIds | Iterable[TokenIds] | None = None,
        stream: bool,
        **unsupported: Sequence[int] | None,
    ) -> list[RequestOutput] | Generator[StreamPiece, None, None]: ...

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt] | None = None,
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        *,
        prompt_token_ids: TokenIds | Iterable[TokenIds] | None = None,
        stream: bool = False,
        **unsupported: Sequence[int] | None,
    ) -> list[RequestOutput] | Generator[StreamPiece, None, None]:
        """Runs all prompts until they are finished, and returns their outputs in the same order.

        A prompt is a text; or 1 to max_model_len - 1 token ids, each below vocab_size; or a
        dictionary, {"prompt": text} or {"prompt_token_ids": ids}, which may have vLLM's
        "cache_salt". `prompts` is one of them, or any iterable of them; prompts of ids may also be
        given as `prompt_token_ids`. `sampling_params`: one, or one for each prompt; by default
        SamplingParams(), and not the values of the checkpoint's generation_config.json. `use_tqdm`:
        show a progress bar on stderr with the speed of prefill and decode in tokens per second; a
        function is called in place of tqdm. `unsupported`: vLLM's other arguments, such as
        lora_request, which must be None; a list of priorities is ignored, because the order is
        first come, first served. With `stream` it returns an iterator of pieces instead, whose
        `index` is that of the prompt. The requests then make progress only while some call of this
        LLM runs or some iterator of pieces is asked for the next one.

        Raises UserError or TypeError if a prompt, a parameter or their number is wrong; then
        nothing runs. After an exception, also after Ctrl-C, no request of the call continues to
        run.
        """
        refuse("generate", unsupported, _GENERATE_NEUTRAL, _GENERATE_ARGUMENTS)
        self._engine.require_alive()
        listed = to_prompts(prompts, prompt_token_ids)
        if sampling_params is None:
            sampling_params = SamplingParams()
        if isinstance(sampling_params, SamplingParams):
            if len(listed) > 1:
                self._engine.check(sampling_params)  # so that no prompt is blamed
            sampling_params = [sampling_params] * len(listed)
        elif isinstance(sampling_params, Mapping) or not isinstance(sampling_params, Iterable):
            raise TypeError(
                f"sampling_params is {sampling_params!r:.60}; it must be SamplingParams, or a list "
                "with one for each prompt"
            )
        sampling_params = list(sampling_params)
        if len(listed) != len(sampling_params):
            raise _core.UserError(
                f"{len(listed)} prompts and {len(sampling_params)} SamplingParams; "
                "give one, or one for each prompt"
            )
        if stream:
            return self._pieces(listed, sampling_params)
        return self._outputs(listed, sampling_params, use_tqdm)

    def stream(
        self, prompt: Prompt, sampling_params: SamplingParams | None = None
    ) -> Generator[StreamPiece, None, None]:
        """Yields the answer to one prompt in pieces: `for piece in llm.stream("Once"): ...`.

        The request starts when the first piece is requested, and ends if the loop is left. It makes
        progress only while some call of this LLM runs or some iterator of pieces is asked for the
        next one, because the engine has no thread of its own. If n is above 1, the pieces of all
        answers come in turns; their `choice` says which answer they belong to. Raises what
        `generate` raises.
        """
        self._engine.require_alive()
        return self._pieces([prompt], [_or_default(sampling_params)])

    @overload
    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stream: Literal[False] = False,
        **unsupported: Sequence[int] | str | None,
    ) -> list[RequestOutput]: ...

    @overload
    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stream: Literal[True],
        **unsupported: Sequence[int] | str | None,
    ) -> Generator[StreamPiece, None, None]: ...

    @overload
    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stream: bool,
        **unsupported: Sequence[int] | str | None,
    ) -> list[RequestOutput] | Generator[StreamPiece, None, None]: ...

    def chat(
        self,
        messages: Conversation | Iterable[Conversation],
        sampling_params: SamplingParams | Iterable[SamplingParams] | None = None,
        use_tqdm: bool | Callable[..., Any] = True,
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        *,
        stream: bool = False,
        **unsupported: Sequence[int] | str | None,
    ) -> list[RequestOutput] | Generator[StreamPiece, None, None]:
        """Answers a conversation in OpenAI's format, or several in one batch, as `generate` does
        with the prompts that the chat template makes of them.

        Without `sampling_params` it uses `get_default_sampling_params()`. The other parameters are
        those of `Tokenizer.apply_chat_template`; `chat_template_kwargs` are variables of the
        template, such as {"enable_thinking": False}. `unsupported` are vLLM's other arguments, as
        in `generate`; chat_template_content_format may also be "auto" or "string".
        """
        refuse("chat", unsupported, _CHAT_NEUTRAL, _CHAT_ARGUMENTS)
        self._engine.require_alive()
        conversations = _to_conversations(messages)
        prompts: list[Prompt] = []
        for index, conversation in enumerate(conversations):
            try:
                text = self.tokenizer.apply_chat_template(
                    conversation,
                    tools,
                    add_generation_prompt=add_generation_prompt,
                    continue_final_message=continue_final_message,
                    chat_template=chat_template,
                    tokenize=False,
                    **({} if chat_template_kwargs is None else chat_template_kwargs),
                )
            except (TypeError, ValueError) as error:
                raise _with_place(error, "conversation", index, len(conversations)) from None
            ids = self.tokenizer.encode(text, add_special_tokens=False)
            prompts.append(TokensPrompt(prompt_token_ids=ids, prompt=text))
        if sampling_params is None:
            sampling_params = self.get_default_sampling_params()
        if stream:
            return self.generate(prompts, sampling_params, stream=True)
        return self.generate(prompts, sampling_params, use_tqdm)

    def get_tokenizer(self, transformers: bool = False) -> Any:
        """`self.tokenizer`, or the checkpoint's tokenizer as an object of the package transformers,
        which raises ImportError if that is not installed."""
        return self.tokenizer.to_transformers() if transformers else self.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """The sampling values of the checkpoint's generation_config.json. If it does not limit the
        length of an answer, max_tokens is None. `chat` uses them by default."""
        self._engine.require_alive()
        usual = _core.sampling_fields(SamplingParams())
        values = _core.default_sampling_params(*self._generation_config)
        changed = {name: value for name, value in values.items() if value != usual[name]}
        return SamplingParams(**changed)

    def reset_prefix_cache(self) -> bool:
        """Empties the prefix cache; running requests keep their blocks. Returns True."""
        self._engine.reset_prefix_cache()
        return True

    def stats(self) -> EngineStats:
        """What the engine has done so far, and its state after the latest step."""
        return EngineStats(**self._engine.stats())

    if not TYPE_CHECKING:  # type checkers shall report unknown attributes

        def __getattr__(self, name: str) -> Any:
            where = f": {_ELSEWHERE[name]}" if name in _ELSEWHERE else ""
            raise AttributeError(f"LLM has no attribute '{name}'{where}", name=name, obj=self)

    def add_request(self, prompt: Prompt, sampling_params: SamplingParams | None = None) -> int:
        """For callers that run the engine step by step: add requests, then call `step()` until
        `is_finished()`. Returns the id of the request. Raises what `generate` raises."""
        given, _, salt = split_prompt(prompt)
        return self._engine.add(self._added, given, _or_default(sampling_params), salt)

    def abort(self, request_id: int | str) -> bool:
        """Ends a request; the next `step()` returns it with the tokens it has. `request_id` is what
        `add_request` returned, or the `request_id` of an output. Returns False if no such request is
        running."""
        self._engine.require_alive()
        if isinstance(request_id, str):
            number = int(request_id) if request_id.isdecimal() else -1
        else:
            number = operator.index(request_id)
        return 0 <= number < 1 << 64 and self._engine.abort(number)

    def step(self) -> tuple[list[tuple[int, list[int]]], int]:
        """Runs one step for all requests. Returns the requests of `add_request` that ended, each as
        (id, token ids of its first answer), and how many tokens the step computed: a negative
        number if all of them were decodes, a positive one if tokens of prompts were among them."""
        before = self._engine.num_tokens()
        arrived = self._engine.wait(self._added, 0)
        prefill, decode = (b - a for a, b in zip(before, self._engine.num_tokens()))
        ended = [(request_id, keys["token_ids"]) for request_id, (keys, _) in arrived]
        return ended, prefill + decode if prefill else -decode

    def is_finished(self) -> bool:
        """Whether `step` has returned every request of `add_request`."""
        return self._engine.is_finished(self._added)

    @property
    def max_model_len(self) -> int:
        """The most tokens that a prompt and its answer may have together."""
        return self._engine.max_model_len

    @property
    def vocab_size(self) -> int:
        """Token ids are 0 to vocab_size - 1."""
        return self._engine.vocab_size

    def exit(self) -> None:
        """Frees the model now. Every later use raises EngineDead; only `tokenizer` still works."""
        self._engine.exit()

    def __enter__(self) -> Self:
        self._engine.require_alive()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.exit()

    def _submit(
        self, inbox: _core.Inbox, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> dict[int, tuple[int, str | None]]:
        """Adds the requests of a call. Returns the index and the text of each prompt by the id of
        its request."""
        requests = {}
        for index, prompt in enumerate(prompts):
            try:
                given, text, salt = split_prompt(prompt)
                requests[self._engine.add(inbox, given, params[index], salt)] = index, text
            except (TypeError, ValueError) as error:
                raise _with_place(error, "prompt", index, len(prompts)) from None
        return requests

    def _outputs(
        self,
        prompts: Sequence[Prompt],
        params: Sequence[SamplingParams],
        use_tqdm: bool | Callable[..., Any],
    ) -> list[RequestOutput]:
        inbox = _core.inbox(False)
        outputs: dict[int, RequestOutput] = {}
        try:
            requests = self._submit(inbox, prompts, params)
            with Bar(len(prompts), use_tqdm, self._engine.num_tokens) as bar:
                while len(outputs) < len(prompts):
                    arrived = self._engine.wait(inbox, _SECONDS_BETWEEN_LOOKS)
                    for request_id, (keys, more) in arrived:
                        index, text = requests[request_id]
                        outputs[index] = RequestOutput(keys, more, text, index)
                    bar.update(len(arrived))
        finally:
            self._engine.abandon(inbox)
        return [outputs[index] for index in range(len(prompts))]

    def _pieces(
        self, prompts: Sequence[Prompt], params: Sequence[SamplingParams]
    ) -> Generator[StreamPiece, None, None]:
        inbox = _core.inbox(True)
        num_left = len(prompts)
        try:
            requests = self._submit(inbox, prompts, params)
            while num_left > 0:
                arrived = self._engine.wait(inbox, _SECONDS_BETWEEN_LOOKS)
                for request_id, (update, texts) in arrived:
                    self._engine.require_alive()  # `exit` may have been called between two pieces
                    index, text = requests[request_id]
                    piece = StreamPiece(update, texts, index)
                    if piece["output"] is not None:
                        keys, more = piece["output"]
                        piece["output"] = RequestOutput(keys, more, text, index)
                        num_left -= 1
                    yield piece
        finally:
            self._engine.abandon(inbox)


LLM.__doc__ = f"{LLM.__doc__}\n    The options:\n\n{OPTIONS_HELP}"


# vLLM's other arguments, and the ones that generate and chat have.
_GENERATE_NEUTRAL, _CHAT_NEUTRAL = neutral_values("generate"), neutral_values("chat")
_GENERATE_ARGUMENTS = list(inspect.signature(LLM.generate).parameters)[1:]
_CHAT_ARGUMENTS = list(inspect.signature(LLM.chat).parameters)[1:]

# What LLM has in vLLM or nano-vLLM, and what a script can use here.
_ELSEWHERE = {
    "scheduler": "the scheduler is C++; nanovllm.engine.scheduler has one to experiment with, and "
    "stats() the counts",
    "model_runner": "ModelRunner is C++, nanovllm/runtime/model_runner.h",
    "llm_engine": "LLM itself has add_request, step, abort and is_finished",
    "beam_search": "SamplingParams(n=...) gives several answers, with their cumulative_logprob",
    "score": "SamplingParams(prompt_logprobs=0) gives the log-probabilities of a prompt",
    "encode": "LLM only generates; tokenizer.encode gives token ids",
    "embed": "LLM only generates",
    "classify": "SamplingParams(allowed_token_ids=...) chooses between labels",
    "sleep": "exit() frees the model's memory, and a new LLM loads it again",
    "wake_up": "exit() frees the model's memory, and a new LLM loads it again",
}


def _to_conversations(messages: Any) -> list[Conversation]:
    """One conversation, or several, as a list of conversations."""
    is_list = isinstance(messages, Iterable) and not isinstance(messages, (str, Mapping))
    listed = list(messages) if is_list else []
    conversations = [listed] if listed and isinstance(listed[0], Mapping) else listed
    if not is_list or not all(map(_is_conversation, conversations)):
        raise TypeError(
            f"messages is {messages!r:.60}; it must be a list of messages such as "
            "{'role': 'user', 'content': 'Hi'}, or a list of such lists"
        )
    return conversations


def _is_conversation(messages: object) -> bool:
    if isinstance(messages, str) or not isinstance(messages, Sequence):
        return False
    return all(isinstance(message, Mapping) for message in messages)


def _or_default(params: SamplingParams | None) -> SamplingParams:
    return SamplingParams() if params is None else params


def _with_place(error: Exception, what: str, index: int, count: int) -> Exception:
    """The same error, with the place in the call if that had more than one item."""
    if count == 1:
        return error
    kind = TypeError if isinstance(error, TypeError) else _core.UserError
    return kind(f"{what} {index} of {count}: {error}")


_alive: weakref.WeakSet[LLM] = weakref.WeakSet()


@atexit.register
def _exit_all() -> None:
    """Ends the engines before the interpreter ends, even if threads still wait for them."""
    _core.leave()
    for llm in list(_alive):
        llm.exit()
