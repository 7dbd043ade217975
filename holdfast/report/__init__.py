"""Records -> tables and pages. Nothing here trains."""

from holdfast.report.methods import methods_page
from holdfast.report.page import write_page
from holdfast.report.table import load_records, print_table, write_markdown

__all__ = ["load_records", "methods_page", "print_table", "write_markdown", "write_page"]
