"""Draw the maps of the faces of deployments, and keep them up to date."""
