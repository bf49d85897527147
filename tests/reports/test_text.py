"""The same figures in every text format, and each format well formed."""

from __future__ import annotations

import csv
import io
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rcalign import api
from rcalign.cli import app
from rcalign.errors import InputError
from rcalign.evaluation.metric_table import METRICS
from rcalign.store.sweep_folder import SweepFolder
from reports.conftest import DOMAINS


def figures(text: str) -> list[str]:
    return re.findall(r"\d+\.\d+(?= ± | \$\\pm\$ )", re.sub(r"[*}]|\\textbf\{", "", text))


def test_all_formats_show_the_same_figures(finished_sweep: Path) -> None:
    terminal = figures(api.report(finished_sweep))
    assert len(terminal) >= 2 * (3 + 2)
    assert figures(api.report(finished_sweep, format="markdown")) == terminal
    assert figures(api.report(finished_sweep, format="latex")) == terminal
    rows = list(csv.DictReader(io.StringIO(api.report(finished_sweep, format="csv"))))
    digits = {metric.name: 1 if metric.per_cent else 3 for metric in METRICS.values()}
    shown = [f"{float(row['mean']):.{digits.get(row['column'], 1)}f}" for row in rows if row["standard_error"]]
    assert shown == terminal
    assert {row["trials"] for row in rows if row["mean"]} == {"2"}


def test_a_narrow_terminal_continues_below(finished_sweep: Path) -> None:
    narrow = api.report(finished_sweep, width=60)
    assert max(map(len, narrow.splitlines())) <= 60
    assert figures(narrow) != figures(api.report(finished_sweep)) and sorted(figures(narrow)) == sorted(
        figures(api.report(finished_sweep))
    )


def test_missing_runs_are_named_in_every_format(sweep: Path, run_id: Callable[..., str]) -> None:
    run = run_id([DOMAINS[2]], draw=1)
    SweepFolder(sweep).run(run).result_file.unlink()
    for name in ("terminal", "markdown", "latex", "csv", "html"):
        assert run in api.report(sweep, format=name)


def test_markdown_tables_are_rectangular_whatever_the_names(finished_sweep: Path) -> None:
    text = api.report(finished_sweep, format="markdown")
    assert "d\\|e" in text and "a\\_&lt;b>" in text
    blocks = re.findall(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    assert len(blocks) == 3  # accuracy, further metrics, comparison
    for block in blocks:
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


def test_latex_structure(finished_sweep: Path) -> None:
    text = api.report(finished_sweep, format="latex")
    for name in set(re.findall(r"\\begin\{(\w+)\}", text)):
        assert text.count(rf"\begin{{{name}}}") == text.count(rf"\end{{{name}}}")
    assert re.sub(r"\\[{}]", "", text).count("{") == re.sub(r"\\[{}]", "", text).count("}")
    assert r"a\_\textless{}b\textgreater{}" in text
    for table in re.findall(r"\\begin\{tabular\}\{(l[lr]+)\}(.*?)\\end\{tabular\}", text, flags=re.DOTALL):
        columns, body = table
        rows = [line for line in body.splitlines() if line.endswith(r"\\")]
        assert rows and all(len(re.findall(r"(?<!\\)&", row)) == len(columns) - 1 for row in rows)


def test_latex_compiles(finished_sweep: Path, tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("there is no pdflatex here; the structure is tested anyway")
    api.report(finished_sweep, out=tmp_path / "report.tex")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "report.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-1500:]


def test_the_command(finished_sweep: Path, tmp_path: Path) -> None:
    runner = CliRunner()
    printed = runner.invoke(app, ["report", str(finished_sweep), "--select", "oracle"])
    assert printed.exit_code == 0 and "test-domain validation (oracle)" in printed.stdout
    out = tmp_path / "new" / "report.md"
    written = runner.invoke(app, ["report", str(finished_sweep), "--out", str(out)])
    assert written.stdout == f"Report written to {out}\n" and out.read_text().startswith("# tiny")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"format": "htlm"}, "unknown format 'htlm': did you mean 'html'"),
        ({"select": "orcale"}, "unknown selection rule 'orcale': did you mean 'oracle'"),
        ({"format": "mlflow"}, "`format=mlflow` writes a folder: name it with `out`."),
        ({"baseline": "ERN"}, "unknown algorithm in this report 'ERN': did you mean 'ERM'"),
        ({"out": "."}, "is a folder, but a report in format terminal is a file"),
    ],
)
def test_wrong_options(finished_sweep: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(InputError) as caught:
        api.report(finished_sweep, **options)  # type: ignore[arg-type]
    assert message in str(caught.value)
