"""Lightning modules, data and callbacks."""
