"""A scorecard as HTML, Markdown, JUnit and plain sentences. (Being written now by the helper for reports alone.)"""
