"""What plugs flroute into other tools, each in a module of its own; nothing here is imported by the core."""
