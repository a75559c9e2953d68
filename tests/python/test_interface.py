"""The signatures are nano-vLLM's, and the types are right."""

import ast
import dataclasses
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

import nanovllm
from nanovllm import LLM, SamplingParams, _core

FIELDS = [field.name for field in dataclasses.fields(SamplingParams)]
EMPTY = inspect.Parameter.empty


@pytest.mark.parametrize(
    "function, parameters",
    [
        (LLM.generate, {"prompts": None, "sampling_params": None, "use_tqdm": True}),
        (LLM.add_request, {"prompt": EMPTY, "sampling_params": None}),
        (LLM.step, {}),
        (LLM.is_finished, {}),
        (LLM.exit, {}),
        (LLM.stream, {"prompt": EMPTY, "sampling_params": None}),
    ],
)
def test_methods_have_nano_vllms_parameters(function: Any, parameters: dict[str, Any]) -> None:
    given = inspect.signature(function).parameters
    positional = {n: p.default for n, p in given.items() if p.kind == p.POSITIONAL_OR_KEYWORD}
    assert {name: default for name, default in positional.items() if name != "self"} == parameters


def test_constructors_have_nano_vllms_parameters() -> None:
    model, kwargs = list(inspect.signature(LLM).parameters.values())
    assert (model.name, model.default, kwargs.kind) == ("model", EMPTY, kwargs.VAR_KEYWORD)
    first = dataclasses.fields(SamplingParams)[:3]
    expected = [("temperature", 1.0), ("max_tokens", 64), ("ignore_eos", False)]
    assert [(field.name, field.default) for field in first] == expected
    options = nanovllm.EngineOptions.__annotations__
    assert list(options)[:8] == [
        "max_num_batched_tokens",
        "max_num_seqs",
        "max_model_len",
        "gpu_memory_utilization",
        "tensor_parallel_size",
        "enforce_eager",
        "kvcache_block_size",
        "num_kvcache_blocks",
    ]


def test_every_public_name_has_a_docstring() -> None:
    for name in nanovllm.__all__:
        public = getattr(nanovllm, name)
        if name == "__version__":
            continue
        if name not in ("UserError", "EngineDead"):
            assert public.__doc__, name
        for member, value in vars(public).items():
            if callable(value) and not member.startswith("_"):
                assert value.__doc__, f"{name}.{member}"


def test_help_says_what_each_option_does() -> None:
    options, params = LLM.__doc__ or "", SamplingParams.__doc__ or ""
    assert "    max_num_seqs: N = 512\n" in (nanovllm.EngineOptions.__doc__ or "")
    assert "    device: auto|cpu|cuda = 'auto'\n" in options
    for text, names in ((options, nanovllm.EngineOptions.__annotations__), (params, FIELDS)):
        for name in names:
            assert re.search(rf"^    {name}(: \S+)? = .*\n {{8}}[A-Za-z]", text, re.MULTILINE), name
        assert not re.search(r"(^|\s)-+[a-z]", text)  # no option of the command line
    assert "enable_prefix_caching = True\n        False: " in options
    assert "enforce_eager = False\n        True: " in options


def test_hints_accept_what_calls_accept(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
from collections.abc import Generator

from nanovllm import LLM, RequestOutput, SamplingParams, StreamPiece
from nanovllm.engine.sequence import Sequence


def run(stream: bool) -> "list[RequestOutput] | Generator[StreamPiece, None, None]":
    llm = LLM(
        "model",
        seed=None,
        max_model_len=None,
        rope_scaling=None,
        hf_overrides=None,
        num_gpu_blocks_override=None,
        max_num_seqs=None,
        max_num_batched_tokens=None,
        trust_remote_code=True,
        generation_config="vllm",
    )
    Sequence.block_size = 16
    params = SamplingParams(n=2, best_of=2)
    llm.stream("Once", params).close()
    llm.chat([{"role": "user", "content": "Hi"}], params, stream=stream)
    return llm.generate(["Once"], params, stream=stream, priority=[0])
""")
    check_types("mypy", "--strict", "script.py", folder=tmp_path)


def check_types(*arguments: str, folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        cwd=folder,
        env={**os.environ, "MYPY_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_examples_and_package_pass_mypy_strict(tmp_path: Path) -> None:
    config = f"--config-file={ROOT / 'pyproject.toml'}"
    assert (Path(nanovllm.__file__).parent / "py.typed").exists()
    # It runs in another folder, so that it checks the types of the installed package.
    examples = map(str, (ROOT / "examples").glob("*.py"))
    check_types("mypy", config, *examples, folder=tmp_path)
    check_types("mypy", config, "-p", "nanovllm", folder=tmp_path)


def test_the_stub_names_what_the_extension_has() -> None:
    stub = ast.parse(Path(_core.__file__).parent.joinpath("_core.pyi").read_text())

    def names(body: list[ast.stmt]) -> set[str]:
        defined = {d.name for d in body if isinstance(d, (ast.ClassDef, ast.FunctionDef))}
        values = [target for d in body if isinstance(d, ast.Assign) for target in d.targets]
        for d in body:
            if isinstance(d, ast.AnnAssign) and ast.unparse(d.annotation).startswith("ClassVar"):
                values.append(d.target)
        return defined | {value.id for value in values if isinstance(value, ast.Name)}

    def has(thing: object) -> set[str]:
        return {name for name in vars(thing) if not name.startswith("_")}

    assert names(stub.body) == has(_core)
    for kind in stub.body:
        if isinstance(kind, ast.ClassDef):
            named = {name for name in names(kind.body) if not name.startswith("_")}
            assert named == has(getattr(_core, kind.name))
