"""The paper's suites, published results and tables, and the language model study."""
