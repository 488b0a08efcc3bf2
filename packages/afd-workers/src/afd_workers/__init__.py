"""What each role runs: role workers, the FFN server loop, the plugin entry point and the ``afd`` command."""

__version__ = "0.1.0"
