"""`report.html`: a run as one page that opens anywhere, made from the run's folder alone."""
