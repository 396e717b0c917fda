"""``torch-lms report``: one HTML file of what was measured, recorded or simulated."""

from datetime import UTC, datetime
from pathlib import Path

import click

from torch_lms.cli.failure import FAILED
from torch_lms.cli.file_named import file_named
from torch_lms.output import write_text

_MAX_BYTES = 6_000_000
"""Of a report that still opens at once."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    default="report.html",
    show_default=True,
    metavar="FILE",
    callback=file_named("an .html file", ".html", ".htm"),
    help="The file to write.",
)
@click.option("--title", default="torch-lms report", show_default=True, help="Its heading.")
def command(files: tuple[Path, ...], output: Path, title: str) -> int:
    """Show FILES as one page that needs no network: open it in any browser.

    FILES are timelines (run or plan --timeline), traces (run --trace), forecasts (plan --json), results (bench, run,
    train or demo --json), a log.jsonl, PNG files, or the folder of a training. What cannot be read is said, and left
    out.
    """
    from torch_lms.report.page import page
    from torch_lms.report.read import read_all

    contents = read_all(files)
    for complaint in contents.complaints:
        click.echo(f"torch-lms: {complaint}", err=True)
    if not contents.found:
        raise click.ClickException("no report: none of the files could be read")
    html = page(contents, title, made_by())
    write_text(html, output)
    size = len(html.encode())
    if size > _MAX_BYTES:
        click.echo(f"torch-lms: the report has {size / 1e6:.1f} MB: give it fewer files to open faster", err=True)
    click.echo(str(output))
    return FAILED if contents.has_unread else 0


def made_by() -> str:
    """What stands below a report's heading."""
    import torch_lms

    now = datetime.now(UTC).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return f"Written by torch-lms {torch_lms.__version__} on {now}."
