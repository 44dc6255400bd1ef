"""Reports over runs: figures, tables for papers and pages, and data files."""
