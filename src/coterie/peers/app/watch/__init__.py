"""A local web page that shows a peer, a lab or a simulation live: ``coterie watch``.

:mod:`.sources` reads their files, :mod:`.history` keeps curves of bounded length, and :mod:`.server` serves both to
this machine only. The page is plain HTML, CSS and JavaScript beside this file. Nothing is written.
"""
