"""Plugins of every test: pytest allows them in the topmost conftest alone."""

pytest_plugins = ["pytester"]
