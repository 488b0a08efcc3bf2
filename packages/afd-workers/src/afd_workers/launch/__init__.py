"""Starts the servers of all roles on this host, watches them and stops them."""
