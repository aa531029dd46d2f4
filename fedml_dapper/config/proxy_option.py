"""The way through an HTTP proxy on the command line, for commands that read no settings."""

from __future__ import annotations

import click

proxy_option = click.option(
    "--http-proxy",
    metavar="URL",
    help="HTTP proxy on the way: http://HOST:PORT, or `environment` for https_proxy, http_proxy and no_proxy; none when"
    " absent.",
)
