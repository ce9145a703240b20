"""pdctl: launches, supervises and routes prefill/decode-disaggregated LLM serving from one topology."""

__version__ = "0.1.0"
