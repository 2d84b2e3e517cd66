"""What noise costs in privacy: accountants and plans. No data, no compiled code."""
