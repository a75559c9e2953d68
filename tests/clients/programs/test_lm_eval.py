"""lm-evaluation-harness evaluates tasks over HTTP: log-likelihoods and texts, with the server's own tokenizer."""
import json
import re
from collections.abc import Callable
from pathlib import Path

from served import KEY, ROOT, Server

# "," ends the answer to the first question; the second answer is another one.
DOCUMENTS = [
    {"text": "Once upon a time there was a king,", "right": " and a queen", "wrong": " 4 7 9 x"},
    {"text": "list all prime numbers within 100", "right": " are: 2, 3, 5", "wrong": " fox said"},
]
TASKS = {
    "tiny_choice": """
output_type: multiple_choice
doc_to_choice: "{{[wrong, right]}}"
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
}


def test_tasks(start: Callable[..., Server], run: Callable[..., str], work: Path) -> None:
    server = start(ROOT / "models/tiny-tales")
    data = work / "documents.jsonl"
    data.write_text("".join(json.dumps(document) + "\n" for document in DOCUMENTS))
    for name, text in TASKS.items():
        common = f"task: {name}\ndataset_path: json\ntest_split: test\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
        (work / f"{name}.yaml").write_text(common + 'doc_to_text: "{{text}}"' + text)
    model = f"model=served,base_url={server.url}/v1/completions,auth_token={KEY},num_concurrent=2,tokenized_requests=False"
    output = run("lm-eval", "bin/lm-eval", "run", "--model", "local-completions", "--model_args", model,
                 "--tasks", ",".join(TASKS), "--include_path", ".",
                 OPENAI_API_KEY=KEY, HF_HOME=str(work.parent / "home"), HF_HUB_OFFLINE="1")
    values = dict(re.findall(r"\|(tiny_\w+) *\|.*?↑ *\| *([\d.]+)", output))
    assert {name: float(value) for name, value in values.items()} == {"tiny_choice": 1, "tiny_until": 0.5}
    assert {path for path, _ in server.requests()} == {"/tokenizer_info", "/tokenize", "/detokenize", "/v1/completions"}
