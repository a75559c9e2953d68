"""examples/lm_eval_model.py: once with lm-evaluation-harness, once without it."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, TINY_TALES, golden_answers, golden_prompts, goldens

from nanovllm import LLM, SamplingParams

SCRIPT = str(ROOT / "examples/lm_eval_model.py")

# "," ends the answer to the first question; the second answer is another one.
DOCUMENTS = [
    {"text": "Once upon a time there was a king,", "right": " and a queen", "wrong": " 4 7 9 x"},
    {"text": "list all prime numbers within 100", "right": " are: 2, 3, 5", "wrong": " fox said"},
]
TASKS = {
    "tiny_choice": """
output_type: multiple_choice
doc_to_choice: ["{{wrong}}", "{{right}}"]
doc_to_target: 1
target_delimiter: ""
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "tiny_until": """
output_type: generate_until
doc_to_target: "{{right}}"
generation_kwargs: {until: [","], max_gen_toks: 8, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "tiny_words": """
output_type: loglikelihood_rolling
doc_to_target: "{{text}}"
metric_list:
  - {metric: word_perplexity, aggregation: weighted_perplexity, higher_is_better: false}
""",
}


def test_the_harness_evaluates_three_kinds_of_tasks(tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="lm-eval is not there; pip could not get it")
    data = tmp_path / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, text in TASKS.items():
        common = f"task: {name}\ndataset_path: json\ntest_split: test\n"
        common += f"dataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        question = "" if name == "tiny_words" else "{{text}}"
        (tmp_path / f"{name}.yaml").write_text(f'{common}doc_to_text: "{question}"{text}')
    done = subprocess.run(
        [sys.executable, SCRIPT, TINY_TALES, *TASKS, "--include-path", str(tmp_path)],
        env={**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    values = dict(re.findall(r"\|(tiny_\w+).*?[↑↓] *\| *([\d.]+)", done.stdout))
    assert float(values.pop("tiny_choice")) == 1
    assert float(values.pop("tiny_until")) == 0.5
    assert 10 < float(values.pop("tiny_words")) < 1000
    assert not values


@pytest.fixture
def model(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The example's model on the tests' engine; what it takes from the harness is a stand-in."""

    class TemplateLM:
        cache_hook = SimpleNamespace(add_partial=lambda *_: None)

    def normalize(kwargs: dict[str, Any], default_max_gen_toks: int) -> dict[str, Any]:
        return {"max_gen_toks": default_max_gen_toks, **kwargs}

    stand_ins = {
        "lm_eval": {},
        "lm_eval.api.model": {"TemplateLM": TemplateLM},
        "lm_eval.models.utils": {"normalize_gen_kwargs": normalize},
        "lm_eval.tasks": {"TaskManager": None},
        "lm_eval.utils": dict.fromkeys(
            ("get_rolling_token_windows", "make_disjoint_window", "make_table")
        ),
    }
    for name, values in stand_ins.items():
        module = ModuleType(name)
        vars(module).update(values)
        monkeypatch.setitem(sys.modules, name, module)
    kind = runpy.run_path(SCRIPT)["NanoVLLM"]
    made = object.__new__(kind)
    made.llm, made.tokenizer, made.max_gen_toks = llm, llm.tokenizer, 4
    return made


def test_log_likelihoods_are_those_of_the_answers(model: Any) -> None:
    rows = goldens()[:4]
    params = SamplingParams(temperature=0, max_tokens=64, logprobs=0)
    outputs = model.llm.generate(golden_prompts(rows), params, use_tqdm=False)
    pairs = zip(golden_prompts(rows), golden_answers(rows))
    found = model._loglikelihood_tokens([(("", ""), *pair) for pair in pairs])
    for output, (likelihood, is_greedy) in zip(outputs, found):
        expected = sum(entries[0]["logprob"] for entries in output["logprobs"])
        assert is_greedy and likelihood == pytest.approx(expected, abs=1e-3)
    other = [(("", ""), rows[0]["prompt_token_ids"], [17, 17])]
    assert model._loglikelihood_tokens(other)[0][1] is False
    longest = model.llm.max_model_len
    (likelihood, _), *_ = model._loglikelihood_tokens([(("", ""), [5] * longest, [6, 7])])
    assert likelihood < 0


def test_answers_end_at_the_task_s_stops(model: Any) -> None:
    def ask(text: str, **kwargs: Any) -> str:
        request = SimpleNamespace(args=(text, {"temperature": 0, "do_sample": False, **kwargs}))
        return str(model.generate_until([request])[0])

    text = DOCUMENTS[0]["text"]
    assert ask(text, until=[","]) == DOCUMENTS[0]["right"]
    assert ask(text, until=[], max_gen_toks=2) == " and a"
    assert ask(text * model.llm.max_model_len, until=[], max_gen_toks=1)
