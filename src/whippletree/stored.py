"""The commands on rollouts that runs have stored: export them, and fine-tune on them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, cast

import typer
from rich.progress import Progress

from whippletree.config import merged, to_toml, with_overrides
from whippletree.errors import ConfigError, StoreError, WhippletreeError
from whippletree.show import Interrupted, err, out, wait_for
from whippletree.store.disk import write_lines
from whippletree.store.run_dir import RunStore
from whippletree.store.where import where
from whippletree.trajectory.export import FORMATS, as_chats, line
from whippletree.types import CallKind, Json

WhereOption = Annotated[
    list[str] | None,
    typer.Option("--where", help="Take only rollouts with KEY=VALUE, such as passed=true, harness=pi or step>=10."),
]


def export(
    run: Annotated[Path, typer.Argument(help="The run directory.")],
    form: Annotated[str, typer.Option("--format", help=" | ".join(FORMATS))] = "jsonl",
    file: Annotated[Path | None, typer.Option("--out", help="The file to write; printed by default.")] = None,
    conditions: WhereOption = None,
    kinds: Annotated[
        list[str] | None, typer.Option("--kind", help="For openai: a kind of call to learn from; main by default.")
    ] = None,
) -> None:
    """Write rollouts for other programs, one JSON document a line."""
    if form not in FORMATS:
        raise ConfigError(f"--format {form}: expected one of {', '.join(FORMATS)}")
    if kinds and form != "openai":
        raise ConfigError(f"--kind goes with --format openai; {form} has calls of all kinds")
    if unknown := set(kinds or ()) - set(CallKind.__args__):
        raise ConfigError(f"--kind {unknown.pop()}: expected one of {', '.join(CallKind.__args__)}")
    wanted = where(conditions or ())
    documents = partial(as_chats, kinds=cast(list[CallKind], kinds)) if kinds else FORMATS[form]
    with RunStore.open(run, read_only=True) as store:

        def lines() -> Iterator[str]:
            for rollout in store.select(wanted):
                yield from map(line, documents(rollout))

        if next(store.select(wanted, with_calls=False), None) is None:
            raise ConfigError(f"no rollout of {run} meets {' and '.join(conditions or ()) or 'no condition'}")
        if file is None:
            sys.stdout.writelines(text + "\n" for text in lines())
        else:
            count = write_lines(file, lines())
            err.print(f"written: {file}, {count} lines", markup=False, soft_wrap=True)


def sft(
    sources: Annotated[
        list[Path] | None, typer.Option("--from", help="A run whose rollouts are imitated; repeat it for more.")
    ] = None,
    conditions: WhereOption = None,
    model: Annotated[str | None, typer.Option(help="`nano`, a checkpoint's directory, or a model name.")] = None,
    change: Annotated[list[str] | None, typer.Option("--set", help="Change a key, for example epochs=3.")] = None,
    directory: Annotated[Path | None, typer.Option("--dir", help="The run directory to make.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="Go on with this run.")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="A line for each epoch instead of a live display.")] = False,
) -> None:
    """Fine-tune a policy on rollouts that passed, or meet other conditions."""
    from whippletree.sft import parse_sft, select

    if (not sources) == (resume is None):
        raise ConfigError("give either runs to learn from or --resume RUN, for example: sft --from runs/scaling")
    if resume is not None:
        if conditions or model or change or directory:
            raise ConfigError("--resume goes alone: a run keeps its configuration and its directory")
        path = resume
    else:
        given: dict[str, Json] = {"runs": [str(source.absolute()) for source in sources or ()]}
        if conditions:
            given["where"] = conditions
        if model:
            given["policy"] = {"model": model}
        config = parse_sft(merged(with_overrides({}, change or []), given), "sft")
        path = directory or Path("runs") / f"sft-{datetime.now(UTC):%Y%m%d-%H%M%S}"
        if path.exists() and any(path.iterdir()):
            raise StoreError(f"{path} exists already: choose another --dir, or go on with it by --resume {path}")
        chosen = select(config)
        RunStore.create(path, to_toml(config), {"command": sys.argv[1:], "selection": chosen}).close()
    _tune(path, plain, fresh=resume is None)
    with RunStore.open(path, read_only=True) as store:
        out.print(f"the policy: {list(store.checkpoints().values())[-1]}", markup=False, soft_wrap=True)


def _tune(path: Path, plain: bool, *, fresh: bool) -> None:
    """Do what a run directory says, from where it stopped; a fresh one that cannot begin is removed."""
    from whippletree.run import discard_unused
    from whippletree.sft import Tuning, open_sft, sft_config_of
    from whippletree.sft import sft as story

    def say(text: str) -> None:
        err.print(text, markup=False, soft_wrap=True)

    async def work() -> None:
        with RunStore.open(path) as store:
            say(f"run directory: {path}")
            async with open_sft(sft_config_of(store), store) as run:
                say(f"{len(run.train)} rollouts to learn from, {len(run.held_back)} held back")
                with Progress(console=err, disable=plain) as progress:
                    bar = progress.add_task("fine-tuning", total=run.num_steps, completed=run.next_step)

                    def saw(step: int, metrics: Mapping[str, float]) -> None:
                        progress.update(bar, completed=step + 1, description=f"loss {metrics['loss']:.3f}")
                        if run.ends_epoch(step):
                            say(_epoch(run, step, metrics))

                    run.progress = saw
                    await story(run)

    def _epoch(run: Tuning, step: int, metrics: Mapping[str, float]) -> str:
        held_back = f", {metrics['validation/loss']:.4f} held back" if run.held_back else ""
        return f"epoch {step // run.steps_per_epoch + 1}: loss {metrics['loss']:.4f}{held_back}"

    try:
        wait_for(work(), f"what is finished is kept, and `whippletree sft --resume {path}` goes on")
    except (Interrupted, StoreError):
        raise
    except WhippletreeError:
        if fresh:
            discard_unused(path)
        raise
