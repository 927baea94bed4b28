"""What a run tells about itself: spans, the event log, the run folder, the summary, the logging setup.

It writes data and draws nothing.
"""
