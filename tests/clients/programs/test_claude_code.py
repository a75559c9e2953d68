"""Claude Code reads a file and edits it, over Anthropic's API."""
from collections.abc import Callable
from pathlib import Path

from served import KEY, Server

from .conftest import call
from .packages import environment


def test_a_file_is_edited(agent: Callable[..., Server], run: Callable[..., str], work: Path) -> None:
    notes = work / "notes.txt"
    notes.write_text("The sky is blue.\n")
    server = agent([
        ("", "<think>\nHm.\n</think>\n\nI read it.\n" + call("Read", file_path=str(notes))),
        ("The sky is blue.", call("Edit", file_path=str(notes), old_string="blue", new_string="green")),
        ("updated", "Now it is green."),
    ])
    [program] = environment("claude-code").glob("lib/*/site-packages/claude_agent_sdk/_bundled/claude")
    output = run("claude-code", str(program), "-p", "Make the sky green in notes.txt", "--allowedTools", "Read,Edit",
                 ANTHROPIC_BASE_URL=server.url, ANTHROPIC_AUTH_TOKEN=KEY, ANTHROPIC_MODEL="served",
                 ANTHROPIC_DEFAULT_HAIKU_MODEL="served", CLAUDE_CODE_SUBAGENT_MODEL="served",
                 CLAUDE_CODE_MAX_CONTEXT_TOKENS="65536", CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1")
    assert output.strip() == "Now it is green."
    assert notes.read_text() == "The sky is green.\n"
    assert server.requests() == [("/v1/messages", 200)] * 3
