"""Find the people among faces that nobody has named: a neighbour graph, merged by average linkage."""
