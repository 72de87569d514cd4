"""Reports: tables for the terminal and pages for the browser."""
