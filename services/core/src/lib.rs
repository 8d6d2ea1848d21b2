//! fabrique-core
