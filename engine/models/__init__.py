"""Model families, and how their weights and tokenizers are loaded."""
