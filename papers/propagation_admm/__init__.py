"""Model propagation and collaborative learning by ADMM (MP, CL)."""
