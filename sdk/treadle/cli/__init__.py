"""The command line; start reading at ``main.py``."""
