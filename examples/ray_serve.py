"""Serves a model with Ray Serve: one `nanovllm serve` for each group of GPUs (or of cores), on one
machine or on a cluster, behind one address.

python examples/ray_serve.py MODEL [--port 8000] [--max-replicas N] [-- OPTIONS OF nanovllm serve]

A client sees the API of `nanovllm serve`, whole and streamed. If a replica dies, Ray starts another
one, and the requests that it had not begun to answer go to another replica. docs/serving.md explains
how to run this on a cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import shutil
import signal
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import ray
from ray import serve
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

Headers = list[tuple[str, str]]

# Of one connection, or written anew for the next one. Host is forwarded: with it, a replica tells the
# chat page, whose origin has the same host, from the pages of other sites.
NOT_FORWARDED = {"connection", "content-length", "keep-alive", "transfer-encoding"}
REPLACED = {
    "date",
    "x-request-id",
}  # in a response: Ray has its own, and X-Request-Id is the same one
# A request that makes engines die ends this many of them at most.
ATTEMPTS = 4
LOST = b'data: {"error": {"message": "the replica has ended", "type": "server_error", "param": null, "code": null}}\n\n'


def forwarded(headers: Any) -> Headers:
    return [(name, value) for name, value in headers.items() if name.lower() not in NOT_FORWARDED]


class Engine:
    """A replica: an actor that starts `nanovllm serve` and passes requests on to it."""

    async def __init__(self, command: list[str]) -> None:  # type: ignore[misc]  # Ray awaits it
        # The kernel ends the engine with this process, even if it is killed: the GPU is free then.
        self.process = await asyncio.create_subprocess_exec(
            "setpriv", "--pdeathsig", "KILL", *command, stderr=asyncio.subprocess.PIPE
        )
        assert self.process.stderr is not None
        url = None
        while url is None:
            line = (await self.process.stderr.readline()).decode()
            sys.stderr.write(line)
            url = re.search(r"listening on (http://\S+)", line)
            if not line:
                raise RuntimeError(f"{command[0]} has ended with {await self.process.wait()}")
        self.name = serve.get_replica_context().replica_id.unique_id
        self.tasks = [asyncio.create_task(self.copy_log()), asyncio.create_task(self.watch())]
        self.client = aiohttp.ClientSession(
            url[1],
            timeout=aiohttp.ClientTimeout(None),
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
        )
        while not await self.is_healthy():
            await asyncio.sleep(0.05)

    async def copy_log(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            sys.stderr.write(line.decode())

    async def watch(self) -> None:
        """A replica without its engine is of no use: Ray starts another one."""
        await self.process.wait()
        os._exit(1)

    async def is_healthy(self) -> bool:
        async with self.client.get("/health") as response:
            return bool(response.status == 200)

    async def check_health(self) -> None:  # Ray calls it from time to time
        if not await self.is_healthy():
            raise RuntimeError("the engine is not healthy")

    async def answer(
        self, method: str, path: str, headers: Headers, body: bytes
    ) -> AsyncIterator[Any]:
        """Yields the status, the headers and the first piece of the body, and then the other pieces.
        What is not a stream of events has only one piece."""
        try:
            async with self.client.request(method, path, headers=headers, data=body) as response:
                if response.status == 503:
                    raise ConnectionError("the engine takes no requests")
                named = [
                    (n, v) for n, v in forwarded(response.headers) if n.lower() not in REPLACED
                ]
                named.append(("X-Replica", self.name))
                if response.content_type != "text/event-stream":
                    yield response.status, named, await response.read()
                    return
                pieces = response.content.iter_any()
                yield response.status, named, await anext(pieces, b"")
                async for piece in pieces:
                    yield piece
        except aiohttp.ClientError as error:
            raise ConnectionError(str(error)) from None  # which Ray can send to the gateway


class Gateway:
    """Passes requests to the replicas, and those that a replica did not begin to answer to another one."""

    def __init__(self, engines: Any) -> None:
        self.engines = engines.options(stream=True)

    async def __call__(self, request: Request) -> Response:
        path = request.url.path + ("?" + request.url.query if request.url.query else "")
        call = (request.method, path, forwarded(request.headers), await request.body())
        for attempt in range(ATTEMPTS):
            pieces = self.engines.answer.remote(*call)
            try:
                status, headers, first = await anext(pieces)
                break
            except (ray.exceptions.RayError, ConnectionError) as error:
                print(f"attempt {attempt + 1} of {ATTEMPTS}: {error}", file=sys.stderr)
                await asyncio.sleep(0.1 * 4**attempt)
        else:
            return Response(
                '{"error": {"message": "no replica could answer", "type": "server_error", "param": null, '
                '"code": null}}',
                500,
                media_type="application/json",
            )
        response: Response
        if any(value.startswith("text/event-stream") for _, value in headers):
            response = StreamingResponse(self.stream(first, pieces), status)
        else:
            response = Response(first, status)
        for name, value in headers:
            response.headers[name] = value
        return response

    async def stream(self, first: bytes, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        yield first
        try:
            async for piece in pieces:
                yield piece
        except (ray.exceptions.RayError, ConnectionError):
            yield LOST  # the client has a part of the answer: it must not be begun again


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("model")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="GPUs per replica")
    parser.add_argument("--cpus", type=int, default=0, help="cores per replica if there is no GPU")
    parser.add_argument("--min-replicas", type=int, default=1)
    parser.add_argument("--max-replicas", type=int, default=0, help="0: as many as fit the cluster")
    parser.add_argument(
        "--target-ongoing-requests", type=int, default=128, help="per replica, for the autoscaler"
    )
    parser.add_argument(
        "--max-ongoing-requests",
        type=int,
        default=1024,
        help="per replica; more wait in the gateway",
    )
    parser.add_argument("--gateways", type=int, default=1)
    parser.add_argument(
        "--nanovllm",
        default=shutil.which("nanovllm"),
        help="the program, at the same path everywhere",
    )
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = sys.argv[cut + 1 :]  # of nanovllm serve
    args = parser.parse_args(sys.argv[1:cut])
    if not args.nanovllm:
        parser.error("there is no nanovllm in PATH; --nanovllm names it")

    ray.init(include_dashboard=False)  # RAY_ADDRESS names a cluster
    resources = ray.cluster_resources()
    gpus = int(resources.get("GPU", 0))
    cpus = args.cpus or (1 if gpus else int(resources["CPU"]))
    most = gpus // args.tensor_parallel_size if gpus else int(resources["CPU"]) // cpus
    command = [
        args.nanovllm,
        "serve",
        os.path.abspath(args.model) if os.path.exists(args.model) else args.model,  # or a hub's id
        "--served-model-name",
        args.model,
        "--port",
        "0",
    ]
    command += (
        ["--tensor-parallel-size", str(args.tensor_parallel_size)]
        if gpus
        else ["--threads", str(cpus)]
    )
    if args.host not in ("127.0.0.1", "localhost", "::1"):
        command += ["--allowed-hosts", "*"]  # the machines of a cluster have many names
    most = args.max_replicas or max(most, 1)
    engines = serve.deployment(
        Engine,
        ray_actor_options={"num_gpus": args.tensor_parallel_size if gpus else 0, "num_cpus": cpus},
        max_ongoing_requests=args.max_ongoing_requests,
        autoscaling_config={
            "min_replicas": min(args.min_replicas, most),
            "max_replicas": most,
            "target_ongoing_requests": args.target_ongoing_requests,
        },
        health_check_period_s=5,
        graceful_shutdown_timeout_s=60,
    ).bind([*command, *options])
    gateway = serve.deployment(
        Gateway,
        ray_actor_options={"num_cpus": 0},
        num_replicas=args.gateways,
        max_ongoing_requests=100_000,
    ).bind(engines)
    serve.start(http_options={"host": args.host, "port": args.port, "location": "EveryNode"})
    serve.run(gateway)
    print(f"serving on http://{args.host}:{args.port}", flush=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        serve.shutdown()


if __name__ == "__main__":
    main()
