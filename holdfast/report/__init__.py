"""Records -> tables, figures, one page. Nothing here trains."""
