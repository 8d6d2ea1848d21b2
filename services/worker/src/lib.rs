//! fabrique-worker
