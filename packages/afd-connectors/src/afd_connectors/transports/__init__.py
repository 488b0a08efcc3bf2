"""The built-in transports; each is reached by name through the registry."""
