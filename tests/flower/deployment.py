"""A real Flower federation on loopback: TLS, authenticated SuperNodes, every process ended."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from .certificates import write_certificates, write_node_key

BIN = Path(sys.executable).parent
ENVIRONMENT = {  # no network; and ray's workers wait for nobody
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
    "OMP_NUM_THREADS": "1",
}


class Federation:
    """A SuperLink and its SuperNodes, each in a process group of its own that ends with it.

    With `simulation`, the SuperLink simulates the nodes and needs no certificates.
    """

    def __init__(self, folder: Path, *, simulation: bool = False) -> None:
        self.folder, self.simulation = folder, simulation
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        home = folder / "home"
        home.mkdir(parents=True)
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            "FLWR_HOME": str(home),
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }
        trust = "insecure = true" if simulation else f'root-certificates = "{folder / "ca.crt"}"'
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "lab"\n\n[superlink.lab]\n'
            f'address = "127.0.0.1:{self.port}"\n{trust}\n'
        )

    def __enter__(self) -> "Federation":
        try:
            self.start_superlink()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start_superlink(self) -> None:
        """With certificates made now, and no node admitted that is not registered."""
        write_certificates(self.folder)
        command = f"flower-superlink --host 127.0.0.1 --port {self.port}"
        command += " --disable-runtime-dependency-installation"
        if self.simulation:
            command += " --simulation --insecure"
        else:
            command += " --enable-supernode-auth --ssl-ca-certfile ca.crt"
            command += " --ssl-certfile server.pem --ssl-keyfile server.key"
        self.start("superlink", command.split())
        wait_until(lambda: self.alive("superlink") and accepts(self.port), 120, "SuperLink")

    def start_node(self, name: str, config: str, register: bool = True) -> None:
        """A SuperNode with a key of its own."""
        write_node_key(self.folder / name)
        if register:
            self.flwr("supernode", "register", str(self.folder / f"{name}.pub"), "lab")
        command = f"flower-supernode --root-certificates ca.crt --superlink 127.0.0.1:{self.port}"
        command += f" --auth-supernode-private-key {name} --host 127.0.0.1 --port {free_port()}"
        self.start(name, [*command.split(), "--node-config", config])

    def start(self, name: str, command: list[str]) -> None:
        """Start a process whose output goes to a file; it leads a group with its children."""
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [str(BIN / command[0]), *command[1:]],
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def flwr(self, *arguments: str) -> str:
        """What a `flwr` command prints."""
        done = subprocess.run(
            [str(BIN / "flwr"), *arguments],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def run(self, app: Path, **config: Any) -> int:
        """Submit an app; its run id."""
        options = " ".join(f"{key.replace('_', '-')}={_toml(v)}" for key, v in config.items())
        told = self.flwr("run", str(app), "lab", "--run-config", options, "--format", "json")
        return int(json.loads(told)["run-id"])

    def status(self, run: int) -> str:
        """ "pending", "running", "finished:completed", ..."""
        told = json.loads(self.flwr("list", "lab", "--run-id", str(run), "--format", "json"))
        return str(told["runs"][0]["status"])

    def online(self) -> int:
        """How many SuperNodes the SuperLink sees."""
        told = json.loads(self.flwr("supernode", "list", "lab", "--format", "json"))
        return sum(node["status"] == "online" for node in told["nodes"])

    def alive(self, name: str) -> bool:
        """Whether the process runs; its output in an error if it does not."""
        assert self.processes[name].poll() is None, self.log(name)
        return True

    def log(self, name: str) -> str:
        """What a process has said so far."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def kill(self, name: str) -> None:
        """SIGKILL to a process and its children, as a power cut would."""
        process = self.processes.pop(name)
        _signal_group(process, signal.SIGKILL)
        process.wait(10)

    def stop(self) -> None:
        """End everything that was started here, SuperNodes first, and whatever they started."""
        family = descendants({process.pid for process in self.processes.values()})
        for process in reversed(self.processes.values()):
            _signal_group(process, signal.SIGTERM)
        deadline = time.monotonic() + 10
        for process in reversed(self.processes.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.1))
            _signal_group(process, signal.SIGKILL)
            process.wait(10)
        for pid, _ in family & {(pid, start) for pid, _, start in running()}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.processes.clear()


def running() -> list[tuple[int, int, str]]:
    """(process, parent, start) of every process."""
    told = subprocess.run(
        ["ps", "-e", "-o", "pid=,ppid=,lstart="], capture_output=True, text=True, check=True
    )
    rows = [line.split(maxsplit=2) for line in told.stdout.splitlines()]
    return [(int(pid), int(parent), start) for pid, parent, start in rows]


def descendants(pids: set[int]) -> set[tuple[int, str]]:
    """(process, start) of all children, and theirs."""
    table, found, family = running(), set(pids), set[tuple[int, str]]()
    while True:
        more = {(pid, start) for pid, parent, start in table if parent in found} - family
        if not more:
            return family
        family |= more
        found |= {pid for pid, _ in more}


def free_port() -> int:
    """A port of loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether something listens on this port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Ask again and again; an error after this many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {seconds} seconds"
        time.sleep(0.5)


def _signal_group(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _toml(value: Any) -> str:
    return json.dumps(value)
