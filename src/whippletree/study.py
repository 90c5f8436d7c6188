"""A study: several seeds of several arms, each a run of its own, put side by side.

Every (seed, arm) is a child process over a run directory of its own: finished ones are kept, broken ones are resumed,
seeds can be added later, and as many run at the same time as there are cores.
"""

from __future__ import annotations

import asyncio
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from whippletree import __version__, report
from whippletree.analysis.scores import pass_rate
from whippletree.analysis.study import StudyResult, aggregate, from_json, study_tables, to_json, values_of
from whippletree.config import RunConfig, Section, merged, parse, to_toml, validated
from whippletree.errors import ConfigError, StoreError, WhippletreeError
from whippletree.run import discard_unused
from whippletree.store.run_dir import RunStore
from whippletree.types import Json


class StudyConfig(Section):
    """What is compared: the arms are changes to one run configuration."""

    name: str = Field(description="The title of its report.")
    seeds: tuple[int, ...] = Field(min_length=1, description="One run of every arm each.")
    compare: tuple[tuple[str, str], ...] = Field(default=(), description="Pairs of arms whose difference is reported.")
    run: dict[str, Json] = Field(default={}, description="The run configuration that the arms share.")
    arms: dict[Annotated[str, Field(pattern=r"^[\w-][\w.-]*$")], dict[str, Json]] = Field(
        min_length=1, description="Name of its folder -> changes to the run configuration."
    )

    @field_validator("seeds")
    @classmethod
    def _differ(cls, seeds: tuple[int, ...]) -> tuple[int, ...]:
        if len(set(seeds)) < len(seeds):
            raise ValueError("every seed must be named once")
        return seeds

    def config(self, arm: str, seed: int) -> RunConfig:
        tree = merged(self.run, self.arms[arm])
        return parse({**tree, "seed": seed}, f"arm '{arm}' of study '{self.name}'")


@dataclass(frozen=True, slots=True)
class Job:
    arm: str
    seed: int
    path: Path

    @property
    def log(self) -> Path:
        return self.path.with_suffix(".log")


class StudyFailed(WhippletreeError):
    """Some runs of a study ended with an error; the others are kept."""

    exit_code = 1


def jobs(study: StudyConfig, root: Path) -> list[Job]:
    """Every run of the study, seed by seed, so that a study cut short has whole seeds."""
    return [Job(arm, seed, root / f"seed-{seed}" / arm) for seed in study.seeds for arm in study.arms]


def prepare(study: StudyConfig, root: Path) -> list[Job]:
    """Make the run directories that are missing; refuse those that hold results under other settings."""
    configs = {(arm, seed): study.config(arm, seed) for arm in study.arms for seed in study.seeds}
    found = jobs(study, root)
    for job in found:
        toml = to_toml(configs[job.arm, job.seed])
        if (job.path / "run.sqlite").exists():
            with RunStore.open(job.path, read_only=True) as store:
                if store.config_toml == toml:
                    continue
            if not discard_unused(job.path):
                raise StoreError(
                    f"{job.path} was made with other settings than arm '{job.arm}' has now; "
                    "choose another --dir, or delete it to run it again"
                )
        RunStore.create(job.path, toml, {"study": study.name, "arm": job.arm, "seed": job.seed}).close()
    return found


def finished(job: Job) -> bool:
    with RunStore.open(job.path, read_only=True) as store:
        return bool(store.meta().get("finished"))


async def run_jobs(todo: Sequence[Job], parallel: int, watch: Callable[[Sequence[Job]], None]) -> None:
    """Run the jobs that are not finished; raises StudyFailed when all have ended and some have failed."""
    left = [job for job in todo if not finished(job)]
    running: list[Job] = []
    failed: list[Job] = []

    async def work() -> None:
        while left:
            job = left.pop(0)
            running.append(job)
            if await _child(job) != 0:
                failed.append(job)
            running.remove(job)

    async def look() -> None:
        while True:
            watch(running)
            await asyncio.sleep(1.0)

    looking = asyncio.create_task(look())
    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(min(parallel, len(left))):
                workers.create_task(work())
    finally:
        looking.cancel()
    if failed:
        tails = "\n".join(f"  {job.path}: {_last_line(job.log)} (all of it: {job.log})" for job in failed)
        raise StudyFailed(f"{len(failed)} of {len(todo)} runs failed; run the same command again to resume:\n{tails}")


async def _child(job: Job) -> int:
    """One run in a process of its own; where we are interrupted, so is it, and we wait until it has cleaned up."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    with job.log.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "whippletree", "train", "--resume", str(job.path), "--plain"),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=environment,
            start_new_session=True,
        )
        try:
            return await process.wait()
        except asyncio.CancelledError:
            process.terminate()
            await process.wait()
            raise


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


# ---- results ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Summary:
    text: str
    results_json: str
    written: list[Path]


def read_study(tree: dict[str, Json], where: str) -> StudyConfig:
    """Check the study and every arm of it, before any of it runs."""
    if "arms" not in tree:
        raise ConfigError(f"{where} has no arms, so it is no study; give a single run to `whippletree train`")
    study = validated(StudyConfig, tree, where)
    for arm in study.arms:
        study.config(arm, study.seeds[0])
    for pair in study.compare:
        if unknown := set(pair) - set(study.arms):
            raise ConfigError(f"{where}: compare names the arm '{unknown.pop()}'; the arms are {', '.join(study.arms)}")
    return study


def read_earlier(study: StudyConfig, results: Path) -> StudyResult | None:
    """What the results file already says of other seeds; None where it is not there yet.

    Raises StoreError where it is of another study, or already has one of these seeds.
    """
    if not results.exists():
        return None
    earlier = from_json(results.read_text(encoding="utf-8"), str(results))
    if _without_seeds(earlier.settings) != _without_seeds(study.model_dump(mode="json")):
        raise StoreError(f"{results} was made with other settings than study '{study.name}' has now; name another file")
    if twice := set(earlier.seeds) & set(study.seeds):
        raise StoreError(f"{results} already has seed {min(twice)}; its seeds are {', '.join(map(str, earlier.seeds))}")
    return earlier


def _without_seeds(settings: Mapping[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in settings.items() if key != "seeds"}


def summarise(study: StudyConfig, root: Path, arguments: Sequence[str], earlier: StudyResult | None = None) -> Summary:
    """Tables over the seeds that all arms have finished, the report page, and the results file's text.

    The tables and the file include the seeds of `earlier`, whose runs need not be here.
    """
    done = [job for job in jobs(study, root) if finished(job)]
    values: dict[str, dict[int, dict[str, float]]] = values_of(earlier) if earlier else {}
    values = {arm: values.get(arm, {}) for arm in study.arms}
    here = _commit()
    for job in done:
        with RunStore.open(job.path, read_only=True) as store:
            sets = study.config(job.arm, job.seed).evaluate.sets
            values[job.arm][job.seed] = {name: pass_rate(store.scores(name, "final")) for name in sets}
    result = aggregate(
        values,
        study.compare,
        command="whippletree " + " ".join(arguments),
        commit=here if earlier is None or earlier.commit == here else f"{earlier.commit}, {here}",
        machine=f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        settings={
            **study.model_dump(mode="json"),
            "seeds": sorted({*study.seeds, *(earlier.seeds if earlier else ())}),
        },
    )
    paths = {arm: [job.path for job in done if job.arm == arm] for arm in study.arms}
    data = report.collect(paths, f"Study: {study.name}", study_tables(result))
    return Summary(report.as_text(data), to_json(result), report.write(data, root))


def _commit() -> str:
    """The commit of our source tree, or the version of an installed package."""
    here = Path(__file__)
    git = ["git", "-C", str(here.parent)]
    try:  # an installed package may lie in the tree of another project, which does not track it
        subprocess.run([*git, "ls-files", "--error-unmatch", here.name], capture_output=True, check=True)
        found = subprocess.run(
            [*git, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return f"whippletree {__version__}"
    return found.stdout.strip()
