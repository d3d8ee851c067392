"""A run as text, as a page of HTML, as plots, and in a notebook."""

from __future__ import annotations

from blendfilter.views import Views


def views() -> Views:
    """What the methods of a `Run`, and a prediction, call by name; all of it lies above them."""
    from blendfilter.evaluation.rescoring import rescore
    from blendfilter.evaluation.run_status import RunStatus
    from blendfilter.report.card import card
    from blendfilter.report.page import write_report
    from blendfilter.report.run_text import report_text
    from blendfilter.report.trace import trace_text
    from blendfilter.report.trec import write_trec

    return {
        "status": RunStatus,
        "rescore": rescore,
        "report": report_text,
        "html": write_report,
        "card": card,
        "trec": write_trec,
        "trace": trace_text,
    }
