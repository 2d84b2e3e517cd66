"""Private forms of methods: releases with noise, and the account they are debited from."""
