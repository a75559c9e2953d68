"""mini-swe-agent does a task in its loop of bash commands, over the chat API."""
from collections.abc import Callable
from pathlib import Path

from served import KEY, Server

from .conftest import call


def test_a_task(agent: Callable[..., Server], run: Callable[..., str], work: Path) -> None:
    server = agent([
        ("", "<think>\nHm.\n</think>\n\nFirst I write.\n" + call("bash", command="echo hello > made.txt; echo written")),
        ("written", "Then I look.\n" + call("bash", command="cat made.txt")),
        ("hello", "It is there.\n" + call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")),
    ])
    run("mini-swe-agent", "bin/mini", "-m", "hosted_vllm/served", "-c", "mini.yaml",
        "-c", f"model.model_kwargs.api_base={server.url}/v1", "-t", "Write hello to made.txt", "--yolo", "--exit-immediately", "-o", "trajectory.json", HOSTED_VLLM_API_KEY=KEY,
        MSWEA_CONFIGURED="true", MSWEA_COST_TRACKING="ignore_errors", LITELLM_LOCAL_MODEL_COST_MAP="True")
    assert (work / "made.txt").read_text() == "hello\n"
    assert '"exit_status": "Submitted"' in (work / "trajectory.json").read_text()
    assert server.requests() == [("/v1/chat/completions", 200)] * 3
