"""The command line ``fedml-dapper``, whose commands are modules of their own that are loaded when they are called."""

from __future__ import annotations

from importlib import import_module

import click

from fedml_dapper import __version__
from fedml_dapper.process.polite_group import PoliteGroup

SUMMARIES = {
    "adapt": "The model for a device that joins a finished federation.",
    "audit": "Check a server's audit log, and show it.",
    "bench": "Run a table or figure of the papers, and write its report.",
    "calibrate": "Measure this machine as a device's profile.",
    "compare": "Lay finished runs side by side.",
    "data": "Look for data, and pack it.",
    "doctor": "Say what this machine can run, and what to do where it cannot.",
    "export": "Write the model that a device runs to a file.",
    "footprint": "Say what each capability level trains and sends.",
    "init": "Write an experiment file to start from.",
    "plan": "Say which device can run which level.",
    "predict": "Say which class pictures are of, by an exported model.",
    "report": "Write the HTML report of a run or a bench again.",
    "run": "Train the federation of an experiment file.",
    "search": "Search a method's settings for the best validation accuracy.",
    "settings": "Say what every key of an experiment file means.",
    "silos": "Say who may call a server, and who may join.",
    "status": "Show how a running server is.",
    "steer": "Ask a running server to pause, resume, evict, lift or end.",
}
"""Commands, each in ``commands/NAME.py``, with their lines in the overview, which needs to load none of them."""

FIRST_STEPS = """\
fedml-dapper run -c quickstart.yaml    train ten devices of unequal strength
fedml-dapper init                      an experiment for your data and network
fedml-dapper plan -c quickstart.yaml -c fleet.yaml     who can run which level
fedml-dapper compare RUN RUN           what runs reached, and what it cost
fedml-dapper export RUN --level 4 -o phone     the model of a device as a file

fedml-dapper --help has all commands; COMMAND --help says what each takes."""
"""Text of ``fedml-dapper`` without a command."""


class _Commands(PoliteGroup):
    """Commands that are loaded when they are called."""

    program = "fedml-dapper"

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUMMARIES:
            return None
        command: click.Command = getattr(import_module(f"fedml_dapper.commands.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


@click.group(
    cls=_Commands,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog='\b\nCompletion (or zsh_source, fish_source): eval "$(_FEDML_DAPPER_COMPLETE=bash_source fedml-dapper)"',
)
@click.version_option(__version__, prog_name="fedml-dapper")
@click.pass_context
def main(context: click.Context) -> None:
    """DapperFL on FedML: federated learning on physically pruned models under domain shift."""
    if context.invoked_subcommand is None:
        click.echo(FIRST_STEPS)
