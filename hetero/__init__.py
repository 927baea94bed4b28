"""The core: everything that runs in one process. It never imports ray."""

__version__ = "0.1.0"
