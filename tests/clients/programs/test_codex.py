"""Codex CLI runs commands, over the Responses API."""
from collections.abc import Callable
from pathlib import Path

from served import KEY, Server

from .conftest import call
from .packages import environment

CONFIG = """
model = "served"
model_provider = "nanovllm"
model_context_window = 65536

[model_providers.nanovllm]
name = "nano-vLLM"
base_url = "URL/v1"
wire_api = "responses"
env_key = "NANOVLLM_API_KEY"
"""


def test_commands_run(agent: Callable[..., Server], run: Callable[..., str], work: Path) -> None:
    server = agent([
        ("", "<think>\nHm.\n</think>\n\nFirst I write.\n" + call("exec_command", cmd="echo hello > made.txt; echo written")),
        ("written", "<think>\nAnd?\n</think>\n\n" + call("exec_command", cmd="cat made.txt")),
        ("hello", "The file is there."),
    ])
    folder = work.parent / "home/.codex"
    folder.mkdir()
    (folder / "config.toml").write_text(CONFIG.replace("URL", server.url))
    [program] = environment("codex").glob("lib/*/site-packages/codex_cli_bin/bin/codex")
    # Its sandbox needs rights that a container may not have.
    output = run("codex", str(program), "exec", "--skip-git-repo-check", "--sandbox", "danger-full-access",
                 "Write hello to made.txt", NANOVLLM_API_KEY=KEY)
    assert output.strip() == "The file is there."
    assert (work / "made.txt").read_text() == "hello\n"
    assert server.requests() == [("/v1/responses", 200)] * 3
