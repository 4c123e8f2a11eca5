"""`strop audit`: attack a verifier before it is trusted. Exit codes: 1 for findings from --fail-on up, 2 if it cannot run."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from strop.core.errors import UsageError
from strop.core.sandbox import SandboxError

if TYPE_CHECKING:
    from strop.audit.finding import Finding
    from strop.core.trajectory import Group

FAIL_ON = ("confirmed", "lead", "none")
ATTEMPTS = 8
"""Attempts at each task by the agent of --model."""


def audit(
    env: Annotated[
        list[str] | None,
        typer.Argument(help="guess, a task folder, module:attribute, reasoning-gym:NAME; then options: file=a.jsonl."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
    html: Annotated[str | None, typer.Option("--html", help="Write the report as a page to this file.")] = None,
    fail_on: Annotated[
        str, typer.Option("--fail-on", help="Exit with 1 from: confirmed, lead, or none.")
    ] = "confirmed",
    tiers: Annotated[str | None, typer.Option("--tiers", help="Only these, for example 1,2.")] = None,
    seconds: Annotated[float, typer.Option("--seconds", help="Time for all tiers together.")] = 60.0,
    models: Annotated[
        list[str] | None,
        typer.Option(
            "--model", help="Folder of a run whose agent plays, for tier 8. A second one is a stronger agent."
        ),
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", help="Look whether findings of this report still hold.")
    ] = None,
) -> None:
    """Attack a verifier: what wrong answers pass, what right answers fail, what it depends on."""
    if fail_on not in FAIL_ON:
        raise UsageError(f"--fail-on {fail_on!r}: choose one of {', '.join(FAIL_ON)}")
    if seconds <= 0:
        raise UsageError(f"--seconds is {seconds}; it must be above 0")
    if models and len(models) > 2:
        raise UsageError(f"{len(models)} times --model; give one run, or two of which the second is stronger")
    if (not env) == (replay is None):
        raise UsageError("give what to audit (strop audit guess) or --replay FILE, one of the two")
    try:
        if replay is not None:
            code = asyncio.run(_replay(Path(replay), as_json))
        else:
            name, *options = env or [""]
            reports = asyncio.run(_audit(name, _options(options), _tiers(tiers, models), seconds, models or []))
            code = _show(reports, as_json, html, fail_on)
    except SandboxError as problem:
        raise UsageError(f"the audit cannot run: {problem}") from problem
    raise typer.Exit(code)


def _tiers(text: str | None, models: list[str] | None) -> tuple[int, ...]:
    from strop.audit.audit import ALL
    from strop.audit.finding import TIERS

    if text is None:
        return (*ALL, 8) if models else ALL
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdigit() and int(part) in TIERS for part in parts):
        known = ", ".join(f"{number} {name}" for number, name in TIERS.items())
        raise UsageError(f"--tiers {text!r}: give numbers with commas between them; known: {known}")
    wanted = tuple(sorted({int(part) for part in parts}))
    if 8 in wanted and not models:
        raise UsageError("tier 8 needs the attempts of a model; give --model RUN")
    if 8 not in wanted and models:
        raise UsageError("--model is for tier 8, which --tiers leaves out; add 8, or leave --model out")
    return wanted


def _options(given: list[str]) -> dict[str, Any]:
    """Options of a world, as `file=a.jsonl` or `world.file=a.jsonl`."""
    from strop.config.resolve import apply_sets

    tables: dict[str, Any] = {"world": {}}
    for text in given:
        if "=" not in text:
            raise UsageError(f"{text!r} is no option of a world; write it as key=value, for example file=a.jsonl")
        apply_sets(tables, [f"world.{text.removeprefix('world.')}"])
    return tables["world"]


async def _audit(
    env: str, options: dict[str, Any], tiers: tuple[int, ...], seconds: float, models: list[str]
) -> list[dict[str, Any]]:
    """The reports: one, or one for each data set. `models` are runs: that of the agent, and of a stronger one."""
    from strop.audit.audit import MOST
    from strop.audit.audit import audit as attack
    from strop.audit.gym import PREFIX, names
    from strop.audit.locate import locate

    if models and (":" in env or Path(env).is_dir()):
        raise UsageError("--model plays in the world of its run; give the world's name, such as guess")
    everything = names() if env == f"{PREFIX}all" else []
    reports: list[dict[str, Any]] = []
    for name in [f"{PREFIX}{name}" for name in everything] or [env]:
        try:
            subject = await locate(name, options, MOST)
        except UsageError as problem:
            if not everything:
                raise
            reports.append(_unmade(name, str(problem)))
            continue
        try:
            ids = [item.id for item in subject.items]
            groups = await _attempts(models[0], env, ids) if models else []
            strong = await _stronger(models[1], models[0], env, groups) if len(models) > 1 else []
            time = seconds / max(1, len(everything))
            found = await attack(subject, tiers, time, groups=groups, stronger=strong)
        finally:
            await subject.close()
        reports.append(found.as_json())
    return reports


def _unmade(name: str, problem: str) -> dict[str, Any]:
    empty: dict[str, Any] = {"findings": [], "rates": {}, "ceiling": None, "tiers": [], "seconds": 0.0, "reach": {}}
    return {"subject": name, "options": {}, **empty, "not_checked": [problem]}


async def _attempts(run: str, env: str, ids: list[str]) -> "list[Group]":
    """Groups of attempts of a run's agent at the tasks that are looked at."""
    from strop.config.stored import find_run, stored_plan
    from strop.watch.run_folder import RunFolder

    path = find_run(run)
    resolved, plan, world = stored_plan(RunFolder.open(path).run())
    if resolved.run.env != env:
        raise UsageError(f"--model {run} is a run in {resolved.run.env!r}, not in {env!r}; audit the run's own world")
    from strop.core.engine import Sampling
    from strop.loop.restore import restored
    from strop.rollout.group import play_groups

    parts, _ = restored(plan, world, path)
    known = {task.id: task for task in world.split("train")}
    picked = [known[i] for i in ids if i in known]
    sampling = Sampling(plan.limits.turn_tokens, plan.temperature)
    return await play_groups(parts.table, picked, ATTEMPTS, parts.examiner, sampling, ("play", range(len(picked))))


async def _stronger(run: str, model: str, env: str, groups: "list[Group]") -> "list[Group]":
    """Attempts of a stronger run's agent at the tasks of which no attempt passed."""
    from strop.audit.reach import all_failed

    failed = {group.task.id: group.task for group in groups if all_failed(group)}
    found = await _attempts(run, env, list(failed))
    if len(found) != len(failed) or any(group.task != failed[group.task.id] for group in found):
        raise UsageError(f"{run} has other tasks than {model}; give two runs with the same [world]")
    return found


async def _replay(path: Path, as_json: bool) -> int:
    from strop.audit.audit import MOST, replay
    from strop.audit.locate import locate

    results: list[dict[str, Any]] = []
    for report in _read(path):
        findings = _findings(path, report)
        if not findings:
            continue
        subject = await locate(str(report["subject"]), dict(report.get("options", {})), MOST)
        try:
            for finding, holds in await replay(subject, findings):
                results.append({**finding.as_json(), "subject": report["subject"], "holds": holds})
        finally:
            await subject.close()
    if as_json:
        print(json.dumps({"findings": results}))
    else:
        for result in results:
            word = {True: "holds", False: "gone", None: "cannot be replayed"}[result["holds"]]
            print(f"{word:18} {result['kind']:9} tier {result['tier']}  {result['task']:16} {result['claim']}")
        print(f"{sum(r['holds'] is True for r in results)} of {len(results)} findings still hold")
    return int(any(result["holds"] and result["kind"] == "confirmed" for result in results))


def _read(path: Path) -> list[dict[str, Any]]:
    """The reports in a file: one object of `--json`, or one with `reports`."""
    if not path.is_file():
        raise UsageError(f"--replay {path}: there is no such file; give what `strop audit ENV --json` printed")
    try:
        value: Any = json.loads(path.read_text(encoding="utf-8"))
        reports: Any = value.get("reports", [value])
        if not all("subject" in report and "findings" in report for report in reports):
            raise KeyError("subject")
    except (ValueError, AttributeError, TypeError, KeyError):
        raise UsageError(f"--replay {path}: this is no report; give what `strop audit ENV --json` printed") from None
    return reports


def _findings(path: Path, report: dict[str, Any]) -> "list[Finding]":
    from strop.audit.finding import read_finding

    try:
        return [read_finding(finding) for finding in report["findings"]]
    except (KeyError, TypeError, ValueError) as problem:
        raise UsageError(f"--replay {path}: a finding cannot be read ({problem!r})") from None


def _show(reports: list[dict[str, Any]], as_json: bool, html: str | None, fail_on: str) -> int:
    """Print or write the reports; the exit code."""
    if html is not None:
        from strop.report.audit_page import audit_page

        try:
            Path(html).write_text(audit_page(reports), encoding="utf-8")
        except OSError as problem:
            raise UsageError(f"--html {html} cannot be written: {problem}") from None
    if as_json:
        print(json.dumps(reports[0] if len(reports) == 1 else {"reports": reports}))
    else:
        for report in reports:
            _print(report, len(reports) == 1)
    if html is not None:
        print(f"page: {html}", file=sys.stderr)
    serious = {"confirmed": ("confirmed",), "lead": ("confirmed", "lead"), "none": ()}[fail_on]
    return int(any(finding["kind"] in serious for report in reports for finding in report["findings"]))


def _print(report: dict[str, Any], whole: bool) -> None:
    from strop.report.audit_page import cap

    sure = sum(finding["kind"] == "confirmed" for finding in report["findings"])
    leads = len(report["findings"]) - sure
    print(f"{report['subject']}: {sure} confirmed, {leads} leads, {report['seconds']:.1f} s")
    for finding in report["findings"]:
        if finding["kind"] == "confirmed" or whole:
            more = f" (and {finding['tasks'] - 1} more)" if finding["tasks"] > 1 else ""
            print(f"  {finding['kind']:9} tier {finding['tier']}  {finding['task']}{more}: {finding['claim']}")
            if finding["suggestion"]:
                print(f"            {finding['suggestion']}")
    if not whole:
        return
    for name, rate in report["rates"].items():
        print(f"  {name}: {rate['hits']} of {rate['of']} (95 %: {rate['low']:.3f} to {rate['high']:.3f})")
    print(f"  {cap(report['ceiling'])}")
    if report["reach"]:
        reach = report["reach"]
        print(
            f"  of the model's tasks {reach['all_pass']} all pass, {reach['mixed']} mixed, {reach['all_fail']} all fail"
        )
    for text in report["not_checked"]:
        print(f"  not checked: {text}")
