"""What the scripts that measure share."""
import json
import shutil
import subprocess
import sys


def call(args, timeout=580):
    """The standard output of a command. If it fails, this script ends with its error."""
    try:
        done = subprocess.run(args, capture_output=True, text=True, timeout=timeout, check=False)
    except OSError as e:
        sys.exit(f"{args[0]}: {e.strerror}")
    if done.returncode:
        sys.exit(f"{' '.join(args)}: exit {done.returncode}: {done.stderr.strip()[-300:]}")
    return done.stdout


def gpu():
    """The first GPU and its driver; None without one."""
    if not shutil.which("nvidia-smi"):
        return None
    return call(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]).split("\n")[0]


def needed_gpu():
    return gpu() or sys.exit(f"{sys.argv[0]} needs an NVIDIA GPU and its driver; this machine has no nvidia-smi")


def write(result, path):
    """Writes the result as JSON if a path is given."""
    if not path:
        return
    with open(path, "w", encoding="utf8") as file:
        json.dump(result, file, indent=1)
        file.write("\n")
