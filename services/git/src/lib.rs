//! fabrique-git
