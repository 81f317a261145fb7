"""What a person looks at: the HTML report, and the overlay for a trace viewer."""

from emo.report.html import write_report
from emo.report.overlay import write_overlay

__all__ = ["write_overlay", "write_report"]
