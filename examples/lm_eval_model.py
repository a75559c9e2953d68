"""Evaluates a checkpoint with lm-evaluation-harness (`pip install lm-eval`): the harness's tasks, run
by this engine.

python examples/lm_eval_model.py MODEL TASK ... [--limit N] [--include-path FOLDER] [--chat]

Log-likelihoods are prompt_logprobs of the engine; answers are generated greedily unless a task says
otherwise. In a program: `lm_eval.simple_evaluate(NanoVLLM("models/tiny-tales"), tasks=[...])`.
"""

from __future__ import annotations

import argparse
from typing import Any

import lm_eval
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import normalize_gen_kwargs
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window, make_table

from nanovllm import LLM, SamplingParams


class NanoVLLM(TemplateLM):
    """A model of lm-evaluation-harness. `options` are those of LLM."""

    def __init__(self, model: str, max_gen_toks: int = 256, **options: Any) -> None:
        super().__init__()
        self.llm = LLM(model, **options)
        self.tokenizer = self.llm.tokenizer
        self.max_gen_toks = max_gen_toks
        self.name = model

    @property
    def eot_token_id(self) -> int | None:
        return self.tokenizer.eos_token_id

    @property
    def tokenizer_name(self) -> str:
        return self.name.replace("/", "__")

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        return self.tokenizer.encode(string, bool(add_special_tokens))

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], **_: Any
    ) -> list[tuple[float, bool]]:
        """For each (texts, context, continuation): the continuation's log-likelihood, and whether
        each of its tokens is the best."""
        longest = self.llm.max_model_len - 1  # the engine needs room for one token
        prompts = [(context + continuation)[-longest:] for _, context, continuation in requests]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = self.llm.generate(prompts, params, use_tqdm=len(prompts) > 1)
        results = []
        for (texts, _context, continuation), output in zip(requests, outputs):
            logprobs = output["prompt_logprobs"][-len(continuation) :] if continuation else []
            tokens = [entries[0] for entries in logprobs if entries]  # [0] is the prompt's token
            likelihood = sum(token["logprob"] for token in tokens)
            results.append((likelihood, all(token["rank"] == 1 for token in tokens)))
            self.cache_hook.add_partial("loglikelihood", texts, results[-1])
        return results

    def loglikelihood_rolling(self, requests: list[Any], **_: Any) -> list[float]:
        """The log-likelihood of whole texts, in windows where one is too long."""
        likelihoods = []
        for request in requests:
            windows = get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.llm.max_model_len - 2,
                context_len=1,
            )
            parts = [(("", ""), *make_disjoint_window(window)) for window in windows]
            likelihoods.append(sum(value for value, _ in self._loglikelihood_tokens(parts)))
        return likelihoods

    def generate_until(self, requests: list[Any], **_: Any) -> list[str]:
        prompts, params = [], []
        for request in requests:
            context, given = request.args
            wanted = normalize_gen_kwargs(given, default_max_gen_toks=self.max_gen_toks)
            max_tokens, stop = wanted.pop("max_gen_toks"), wanted.pop("until")
            wanted.pop("do_sample", None)  # the temperature says it
            room = max(self.llm.max_model_len - max_tokens, 1)
            prompts.append(self.tok_encode(context)[-room:])
            params.append(SamplingParams(max_tokens=max_tokens, stop=stop, **wanted))
        outputs = self.llm.generate(prompts, params)
        for request, output in zip(requests, outputs):
            self.cache_hook.add_partial("generate_until", request.args, output["text"])
        return [output["text"] for output in outputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("tasks", nargs="+")
    parser.add_argument("--limit", type=int, help="documents of each task")
    parser.add_argument("--include-path", help="a folder with more tasks")
    parser.add_argument("--chat", action="store_true", help="apply the chat template")
    args = parser.parse_args()
    results = lm_eval.simple_evaluate(
        NanoVLLM(args.model),
        tasks=args.tasks,
        limit=args.limit,
        task_manager=TaskManager(include_path=args.include_path),
        apply_chat_template=args.chat,
    )
    print(make_table(results))


if __name__ == "__main__":
    main()
