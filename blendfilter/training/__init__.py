"""Fine-tuned filters, refiners and generators: the papers' learned halves."""
