"""`nanovllm serve` for tests with programs that others have written. The binary is that of the environment variable NANOVLLM, else
that of `make build`."""
import os
import re
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[2]
BINARY = os.environ.get("NANOVLLM", str(ROOT / "build/release/nanovllm"))
KEY = "secret"


class Server:
    def __init__(self, model: str | Path, *options: str) -> None:
        settings = ["--port", "0", "--dtype", "float32", "--kv-cache-memory-bytes", "64M"]
        self.log_file = tempfile.TemporaryFile()
        self.process = subprocess.Popen([BINARY, "serve", str(model), *settings, *options], stderr=self.log_file)
        while not (found := re.match(r".*:(\d+)\n", self.log())):
            assert self.process.poll() is None, self.log()
            time.sleep(0.02)
        self.url = f"http://127.0.0.1:{found.group(1)}"
        while True:
            try:
                urllib.request.urlopen(self.url + "/health")
                return
            except urllib.error.HTTPError:
                time.sleep(0.05)

    def log(self) -> str:
        return os.pread(self.log_file.fileno(), 1 << 20, 0).decode()

    def requests(self) -> list[tuple[str, int]]:
        """Path and status of each request that clients have sent."""
        found = re.findall(r"^info: \S+ [A-Z]+ (\S+) (\d+) ", self.log(), re.M)
        return [(path, int(status)) for path, status in found if path != "/health"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0
