"""`cdc-platform help`: show the help of a command."""

from __future__ import annotations

import click


@click.command("help")
@click.argument("names", metavar="[COMMAND [SUBCOMMAND]]", nargs=-1)
@click.pass_context
def show_help(ctx: click.Context, names: tuple[str, ...]) -> None:
    """Show the help of COMMAND, or of the program.

    \b
    Example:
      cdc-platform help
      cdc-platform help tables add
    """
    context = ctx.find_root()
    command = context.command
    for name in names:
        inner = command.get_command(context, name) if isinstance(command, click.Group) else None
        if inner is None:
            raise click.UsageError(f"{context.command_path} has no command {name!r}", ctx)
        context = click.Context(inner, context, name)
        command = inner
    click.echo(command.get_help(context))
