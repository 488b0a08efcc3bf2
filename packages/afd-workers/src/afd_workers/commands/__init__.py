"""The subcommands of ``afd``: one file each, with ``add(parsers)``."""
