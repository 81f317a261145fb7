"""``emo-simgpu``: shows and drives simulated GPUs, as nvidia-smi does real ones.

    emo-simgpu create H100 H100
    emo-simgpu load 0 --compute 0.9 --memory 0.4
    emo-simgpu run -- python script_that_uses_pynvml.py
    emo-simgpu list

The GPUs live in a file: ``--state``, else EMO_SIMGPU_STATE, else one per user in the temporary folder.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table

from emo.errors import EmoError, InputError
from emo.sim.driver import NEWEST, STATE_VARIABLE, DriverState, GpuState, SimulatedDriver

# Bits of the clock-event reasons, as NVML has them.
REASONS = {
    0x1: "idle",
    0x4: "power cap",
    0x8: "hardware",
    0x20: "thermal",
    0x80: "power brake",
}

app = typer.Typer(
    name="emo-simgpu",
    help="Shows and drives simulated NVIDIA GPUs.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


StateOption = Annotated[
    Path | None,
    typer.Option("--state", envvar=STATE_VARIABLE, help="File of the GPUs (default: one per user)."),
]
Gpu = Annotated[str, typer.Argument(help="Index of the GPU, or * for all.")]
Share = Annotated[float | None, typer.Option(min=0.0, max=1.0)]


def _path(state: Path | None) -> Path:
    return state or Path(tempfile.gettempdir()) / f"emo-simgpu-{os.getuid()}.state"


def _key(gpu: str, name: str) -> str:
    return f"gpu{gpu}.{name}"


def _control(state: Path | None, *lines: str) -> None:
    with SimulatedDriver(_path(state)) as driver:
        driver.control(*lines)


@app.command()
def create(
    models: Annotated[list[str], typer.Argument(help="Models, one per GPU: A100, H100, H200, V100, L40S.")],
    seed: Annotated[int, typer.Option(min=0, help="Which boards they are.")] = 0,
    driver: Annotated[int, typer.Option(help="Driver branch: 450, 470, 535 or 580.")] = NEWEST,
    replace: Annotated[bool, typer.Option("--replace", help="Discard the GPUs that are there.")] = False,
    state: StateOption = None,
) -> None:
    """Make GPUs."""
    path = _path(state)
    if replace:
        path.unlink(missing_ok=True)
    SimulatedDriver.create(path, models, seed=seed, branch=driver).close()


@app.command("list")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Everything that is known, as JSON.")] = False,
    watch: Annotated[float | None, typer.Option(min=0.1, help="Again every so many seconds.")] = None,
    state: StateOption = None,
) -> None:
    """Show clocks, power, energy and why the clocks are what they are."""
    with SimulatedDriver(_path(state)) as driver:
        if as_json:
            sys.stdout.write(msgspec.json.encode(driver.state()).decode() + "\n")
        elif watch is None:
            Console().print(_table(driver.state()))
        else:
            _watch(driver, watch)


def _watch(driver: SimulatedDriver, every_s: float) -> None:
    with Live(_table(driver.state()), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(_table(driver.state()), refresh=True)


def _table(state: DriverState) -> Table:
    loaded = "" if state.driver_loaded else ", not loaded"
    clock = " (frozen)" if state.frozen else ""
    table = Table(
        box=None,
        pad_edge=False,
        title=f"driver {state.driver}{loaded}   {state.now_ns / 1e9:.3f} s{clock}   {state.clients} clients",
        title_justify="left",
    )
    for name in ("GPU", "MHz", "lock", "W", "limit", "J", "°C", "SM/mem/link", "reasons", "PIDs"):
        table.add_column(name, justify="left" if name in ("GPU", "reasons", "PIDs") else "right")
    for gpu in state.gpus:
        table.add_row(*_row(gpu))
    return table


def _row(gpu: GpuState) -> Sequence[str]:
    name = f"{gpu.index} {gpu.model}"
    if gpu.lost:
        return (name, *["-"] * 7, "lost", "")
    clock = f"{gpu.clock_mhz:.0f}" + (f" > {gpu.pending_mhz:.0f}" if gpu.pending_mhz else "")
    low, high = gpu.lock_mhz
    activity = "/".join(f"{share * 100:.0f}" for share in (gpu.compute, gpu.memory, gpu.link))
    return (
        name,
        clock,
        f"{low}-{high}" if high else "-",
        f"{gpu.power_w:.1f}",
        f"{gpu.power_limit_w:.0f}",
        f"{gpu.energy_j:.1f}",
        f"{gpu.temperature_c:.0f}",
        activity,
        ", ".join(text for bit, text in REASONS.items() if gpu.reasons & bit),
        " ".join(map(str, gpu.processes)),
    )


@app.command()
def load(
    gpu: Gpu,
    compute: Share = None,
    memory: Share = None,
    link: Share = None,
    busy: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="What the utilisation says (default: 1 under load)."),
    ] = None,
    state: StateOption = None,
) -> None:
    """Set what runs on a GPU: activities from 0 to 1; without any, nothing runs."""
    shares = {"compute": compute or 0.0, "memory": memory or 0.0, "link": link or 0.0}
    works = any(shares.values())
    lines = [f"{_key(gpu, name)}={share}" for name, share in shares.items()]
    lines.append(f"{_key(gpu, 'busy')}={busy if busy is not None else float(works)}")
    _control(state, *lines)


@app.command()
def lock(gpu: Gpu, low_mhz: int, high_mhz: int, state: StateOption = None) -> None:
    """Lock the SM clock, as somebody else might have done before."""
    _control(state, f"{_key(gpu, 'lock')}={low_mhz} {high_mhz}")


@app.command()
def unlock(gpu: Gpu, state: StateOption = None) -> None:
    """Take the lock away."""
    _control(state, f"{_key(gpu, 'lock')}=none")


@app.command("set")
def set_keys(
    lines: Annotated[list[str], typer.Argument(help="KEY=VALUE, as in docs/simulated-driver.md.")],
    state: StateOption = None,
) -> None:
    """Apply any keys, all at one moment."""
    _control(state, *lines)


@app.command()
def apply(
    file: Annotated[typer.FileText, typer.Argument(help="Lines KEY=VALUE; - is standard input.")],
    state: StateOption = None,
) -> None:
    """Apply a control file, all at one moment."""
    _control(state, *file.read().splitlines())


@app.command()
def fail(
    function: Annotated[str, typer.Argument(help="NVML function, or * for all; none forgets all failures.")],
    code: Annotated[int, typer.Argument(help="Result that it is to have.")] = 999,
    gpu: Annotated[int, typer.Option(help="Only on this GPU; -1 is any.")] = -1,
    times: Annotated[int, typer.Option(help="So many times; -1 is for ever.")] = -1,
    state: StateOption = None,
) -> None:
    """Let calls fail."""
    _control(state, "fail=none" if function == "none" else f"fail={function} {code} {gpu} {times}")


@app.command()
def lose(gpu: Gpu, state: StateOption = None) -> None:
    """Let a GPU fall off the bus."""
    _control(state, f"{_key(gpu, 'lost')}=1")


@app.command()
def restore(gpu: Gpu, state: StateOption = None) -> None:
    """Bring a lost GPU back; it was reset."""
    _control(state, f"{_key(gpu, 'lost')}=0")


@app.command()
def reload(
    force: Annotated[bool, typer.Option("--force", help="Even while processes use it.")] = False,
    state: StateOption = None,
) -> None:
    """Unload and load the driver: locks, limits and counters are forgotten."""
    _control(state, "driver=reload force" if force else "driver=reload")


@app.command(context_settings={"ignore_unknown_options": True})
def run(
    command: Annotated[list[str], typer.Argument(help="After --: what to run.")],
    trace: Annotated[Path | None, typer.Option(help="Append every NVML call to this file.")] = None,
    uid: Annotated[int | None, typer.Option(min=0, help="The user that the driver takes it for.")] = None,
    state: StateOption = None,
) -> None:
    """Run a command that finds these GPUs instead of real ones."""
    with SimulatedDriver(_path(state)) as driver:
        environment = driver.environment(trace=trace, uid=uid)
    program = shutil.which(command[0])
    if program is None:
        raise InputError(f"{command[0]}: command not found")
    sys.stdout.flush()
    os.execve(program, command, environment)


def main() -> None:
    """The console script: an error is one line, and the exit code says what kind it is."""
    try:
        app()
    except EmoError as error:
        print(f"emo-simgpu: error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
