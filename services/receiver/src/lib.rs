//! fabrique-receiver
