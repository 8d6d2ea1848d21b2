//! fabrique-bed
