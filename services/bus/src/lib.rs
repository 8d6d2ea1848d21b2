//! fabrique-bus
