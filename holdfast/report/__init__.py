"""Records -> tables, figures, one page. Nothing here trains."""

from holdfast.app.methods_page import methods_page
from holdfast.report.write import Written, write_report

__all__ = ["Written", "methods_page", "write_report"]
