"""Start a vLLM server for a policy, as `sampler=vllm_server` needs it."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import httpx2
import torch

from robustops.errors import ConfigError, SamplerError
from robustops.rollout.limits import whole_prompt_tokens

_MODULE = "vllm.entrypoints.launchers.api_server.entry"
_GRACE = 15.0
#: Becomes its arguments; ends with the process that started it, however that ends (1 is PR_SET_PDEATHSIG).
_BOUND = (
    "import ctypes, os, signal, sys\n"
    "if sys.platform == 'linux': ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def server_command(
    folder: Path,
    port: int,
    *,
    host: str = "127.0.0.1",
    max_model_len: int | None = None,
    max_in_flight: int = 64,
    dtype: str = "float32",
    enforce_eager: bool = True,
    arguments: Sequence[str] = (),
) -> list[str]:
    """The command line of a server; `server_environment` belongs to it.

    Log-probs include the temperature, prefixes are cached and counted, ids go in and out as they are, and
    the model's generation_config.json changes nothing. arguments: further ones, e.g. --api-key or
    --weight-transfer-config.
    """
    flags = f"--model {shlex.quote(str(folder))} --host {host} --port {port} --dtype {dtype}"
    flags += f" --max-num-seqs {max_in_flight} --logprobs-mode processed_logprobs --generation-config vllm"
    flags += (
        " --skip-tokenizer-init --enable-scale-out --enable-prefix-caching --enable-prompt-tokens-details"
    )
    flags += " --uvicorn-log-level warning" + (" --enforce-eager" if enforce_eager else "")
    if max_model_len is not None:
        flags += f" --max-model-len {max_model_len}"
    if not torch.cuda.is_available():
        flags += f" --no-enable-chunked-prefill --max-num-batched-tokens {whole_prompt_tokens(max_model_len)}"
    return [sys.executable, "-m", _MODULE, *shlex.split(flags), *arguments]


def server_environment() -> dict[str, str]:
    """This process's environment, with what a server needs unless it is set: dev mode offers the endpoints
    that load weights.
    """
    defaults = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING"}
    if not torch.cuda.is_available():
        defaults["VLLM_CPU_KVCACHE_SPACE"] = "1"
    return defaults | dict(os.environ)


@contextmanager
def serve(
    folder: Path,
    *,
    port: int | None = None,
    host: str = "127.0.0.1",
    max_model_len: int | None = None,
    max_in_flight: int = 64,
    dtype: str = "float32",
    enforce_eager: bool = True,
    arguments: Sequence[str] = (),
    patience: float = 600.0,
) -> Iterator[str]:
    """A server for the transformers folder, running until the block ends; gives its address.

    port: None takes a free one; patience: seconds until it must be ready; the rest as in
    `server_command`. Raises ConfigError if there is no model, SamplerError with the end of the server's
    output if it does not start.
    """
    if not (folder / "config.json").is_file():
        raise ConfigError(f"no model in {folder} (config.json is missing); give a transformers folder")
    port = free_port(host) if port is None else port
    command = server_command(
        folder,
        port,
        host=host,
        max_model_len=max_model_len,
        max_in_flight=max_in_flight,
        dtype=dtype,
        enforce_eager=enforce_eager,
        arguments=arguments,
    )
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOUND, *command],
            env=server_environment(),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            url = f"http://{host}:{port}"
            _wait(process, url, output, patience)
            yield url
        finally:
            _stop(process)


def _wait(process: subprocess.Popen[bytes], url: str, output: IO[bytes], patience: float) -> None:
    until = time.monotonic() + patience
    while process.poll() is None and time.monotonic() < until:
        with suppress(httpx2.TransportError):
            if httpx2.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200:
                return
        time.sleep(0.2)
    what = "is not ready" if process.poll() is None else f"ended with status {process.returncode}"
    raise SamplerError(f"the vLLM server {what}; the end of its output:\n{_tail(output)}")


def _tail(output: IO[bytes], size: int = 3000) -> str:
    output.seek(max(0, output.seek(0, os.SEEK_END) - size))
    return output.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the server, then what is left of its group: the engine runs in processes of its own."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_GRACE)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def free_port(host: str) -> int:
    """A port of this address that nobody listens on; the address "" stands for all of them."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
