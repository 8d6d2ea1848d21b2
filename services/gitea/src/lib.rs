//! fabrique-gitea
