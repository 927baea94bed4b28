"""hetero: trains models too wide or too deep for one machine. The core; it runs in one process and never imports ray."""

__version__ = "0.1.0"
