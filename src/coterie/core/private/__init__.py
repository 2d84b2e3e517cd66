"""Private forms of methods: releases with noise, and the privacy accounts of agents."""
