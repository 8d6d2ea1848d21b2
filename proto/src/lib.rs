//! fabrique-proto
