"""aider edits a file, over the chat API. Its models write edits as text."""
from collections.abc import Callable
from pathlib import Path

from served import KEY, Server

ANSWER = """I change it.

notes.txt
```
<<<<<<< SEARCH
The sky is blue.
=======
The grass is green.
>>>>>>> REPLACE
```
"""


def test_a_file_is_edited(reciter: Callable[..., Server], run: Callable[..., str], work: Path) -> None:
    (work / "notes.txt").write_text("The sky is blue.\n")
    server = reciter(ANSWER)
    output = run("aider", "bin/aider", "--model", "openai/served", "--edit-format", "diff", "--no-git", "--yes-always",
                 "--no-check-update", "--no-show-model-warnings", "--analytics-disable", "--message", "Speak of grass", "notes.txt",
                 OPENAI_API_BASE=server.url + "/v1", OPENAI_API_KEY=KEY, LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert "Applied edit to notes.txt" in output
    assert (work / "notes.txt").read_text() == "The grass is green.\n"
    assert server.requests() == [("/v1/chat/completions", 200)]
