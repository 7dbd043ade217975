"""The paper's suites, published numbers and tables, and the study on language models."""
