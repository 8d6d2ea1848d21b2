//! fabrique-registry
