"""Who is better than whom: paired tests, rank ranges and the table of a board."""
