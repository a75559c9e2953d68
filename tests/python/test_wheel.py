"""The wheel runs on machines without the packages that it was built with."""

import json
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import GREEDY, TINY_TALES, goldens

import nanovllm

PACKAGE = Path(nanovllm.__file__).parent
CARRIED = PACKAGE.parent / "nanovllm.libs"

# Hides the distribution's copies of the wheel's libraries from this process and those it starts.
HIDE = """
import ctypes, os, sys
MS_BIND = 4096
for library in os.environ["HIDDEN"].split():
    if ctypes.CDLL(None).mount(b"/dev/null", library.encode(), None, MS_BIND, None) != 0:
        sys.exit("cannot hide " + library)
os.execv(sys.argv[1], sys.argv[1:])
"""

PROGRAM = f"""
import ctypes, json, sys
try:
    ctypes.CDLL("libspdlog.so.1.10")
    sys.exit("spdlog is not hidden")
except OSError:
    pass
from nanovllm import LLM, SamplingParams
prompts = json.loads(sys.stdin.read())
llm = LLM({TINY_TALES!r}, dtype="float32", max_model_len=2048)
outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)
print(json.dumps([output["token_ids"] for output in outputs]))
"""


def wheel() -> Path:
    found = list(Path(sys.prefix, "wheel").glob("*manylinux*.whl"))
    if not found:
        pytest.skip("no repaired wheel in this environment; make test-python builds one")
    return found[0]


def system_libraries() -> list[str]:
    """The distribution's copies of the libraries in the wheel."""
    names = [path.name.rsplit("-", 1)[0] for path in CARRIED.iterdir()]
    folders = [Path("/usr/lib/x86_64-linux-gnu"), Path("/lib/x86_64-linux-gnu"), Path("/usr/lib64")]
    files = {
        str(path.resolve())
        for folder in folders
        for name in names
        for path in folder.glob(name + ".so*")
    }
    return sorted(files)


def test_wheel_runs_in_a_bare_environment(tmp_path: Path) -> None:
    built = wheel()
    unshare = ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*unshare, "true"]).returncode != 0:
        pytest.skip("no namespaces here: unshare --mount is refused")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "-q", built], check=True)
    hidden = system_libraries()
    assert any("libspdlog" in path for path in hidden)

    def bare(*command: str | Path, text: str = "") -> str:
        done = subprocess.run(
            [*unshare, sys.executable, "-c", HIDE, *map(str, command)],
            env={"PATH": "/usr/bin:/bin", "HIDDEN": " ".join(hidden)},
            input=text,
            capture_output=True,
            text=True,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    rows = goldens()[:5]
    prompts = json.dumps([row["prompt_token_ids"] for row in rows])
    answers = bare(python, "-c", PROGRAM, text=prompts)
    assert json.loads(answers) == [row["greedy_token_ids"] for row in rows]

    command = tmp_path / "venv/bin/nanovllm"
    assert bare(command, "--version") == f"nanovllm {version('nanovllm')}\n"
    line = bare(command, "generate", TINY_TALES, "--prompt", "Once", "--max-tokens", "3", "--json")
    assert len(json.loads(line)["token_ids"]) <= 3
    figures = bare(command, "bench", "throughput", TINY_TALES, "--num-prompts", "1", "--json")
    assert json.loads(figures)["output_tokens"] == 845  # the package's own data


def test_wheel_says_where_it_runs() -> None:
    name = wheel().name
    if sys.version_info >= (3, 12):
        assert "-cp312-abi3-" in name
    else:
        assert f"-cp3{sys.version_info.minor}-cp3{sys.version_info.minor}-" in name


def test_other_ranks_run_the_package_s_binary() -> None:
    binary = PACKAGE / "bin/nanovllm"

    def num_workers() -> int:
        return sum(running(process) == binary for process in Path("/proc").glob("[0-9]*/exe"))

    before = num_workers()
    options = {"device": "cpu", "dtype": "float32", "kv_cache_memory_bytes": 64 << 20}
    rows = goldens()[:8]
    with nanovllm.LLM(TINY_TALES, tensor_parallel_size=2, **options) as llm:
        assert num_workers() == before + 1
        outputs = llm.generate([row["prompt_token_ids"] for row in rows], GREEDY, use_tqdm=False)
    assert [o["token_ids"] for o in outputs] == [row["greedy_token_ids"] for row in rows]
    assert num_workers() == before


def running(process: Path) -> Path | None:
    try:
        return process.readlink()
    except OSError:  # it has ended, or belongs to another user
        return None


@pytest.mark.parametrize("command", [["nanovllm"], ["python", "-m", "nanovllm"]])
def test_command_ends_as_the_binary_does(command: list[str]) -> None:
    command = [str(Path(sys.executable).parent / command[0]), *command[1:]]
    done = subprocess.run([*command, "generate", "no/model", "--prompt", "x"], capture_output=True)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"error: no/model: ")
