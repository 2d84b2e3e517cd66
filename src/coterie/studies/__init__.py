"""Many runs: independent pieces of work side by side, each kept when it is done, and tables of what they found."""
