"""Who is in a group, and what all of them have signed: charter, roster, stewards, amendments and bulletins."""
