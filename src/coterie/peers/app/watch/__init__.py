"""A local web page that shows a peer, a lab or a simulation live: ``coterie watch``.

:mod:`.sources` reads what they leave in their files, :mod:`.history` keeps curves of bounded length, :mod:`.server`
serves both to this machine alone. The page is plain HTML, CSS and JavaScript beside this file. Nothing is ever written.
"""
