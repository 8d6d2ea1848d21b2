//! fabrique-bench
