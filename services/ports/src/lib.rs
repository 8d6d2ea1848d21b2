//! fabrique-ports
