"""Packages of PyPI for tests that need them."""
import importlib.util
import os
import subprocess
import sys

UV = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/uv.sh")
SKIPPED = 77  # the exit status that ctest shows as skipped


def skip(reason):
    print("skipped:", reason)
    sys.exit(SKIPPED)


def require(folder, packages):
    """Goes on in the virtual environment `folder`, which is made if it is not there, unless the packages, {module: name on PyPI},
    are installed. Without PyPI the test is skipped."""
    if all(importlib.util.find_spec(module) for module in packages):
        return
    python = os.path.join(folder, "bin", "python3")
    if os.environ.get("NANOVLLM_TEST_VENV") == folder:
        skip(f"{', '.join(packages.values())} cannot be imported from {folder}")
    for command in ([UV, "venv", "--clear", "--python", sys.executable, folder],
                    [UV, "pip", "install", "--python", python, *packages.values()]):
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode != 0:
            skip(f"{', '.join(packages.values())} cannot be installed: {(done.stdout.strip().splitlines() or ['?'])[-1]}")
    os.environ["NANOVLLM_TEST_VENV"] = folder
    os.execv(python, [python, *sys.argv])
