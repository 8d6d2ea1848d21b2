//! fabrique-buildkit
