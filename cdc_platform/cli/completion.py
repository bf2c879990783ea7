"""`cdc-platform completion`: print the completion script of a shell."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a SHELL, to be put where that shell looks for it.

    \b
    Example:
      cdc-platform completion bash > ~/.local/share/bash-completion/completions/cdc-platform
      cdc-platform completion fish > ~/.config/fish/completions/cdc-platform.fish
    """
    script = get_completion_class(shell)
    assert script is not None
    name = ctx.find_root().info_name or ""
    variable = f"_{name.replace('-', '_').upper()}_COMPLETE"
    click.echo(script(ctx.find_root().command, {}, name, variable).source())
