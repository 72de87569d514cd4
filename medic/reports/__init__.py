"""Reports: tables for a terminal, pages for a browser."""
