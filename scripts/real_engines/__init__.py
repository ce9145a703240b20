"""Installs the real serving engines that pdctl's end-to-end tests run against."""
