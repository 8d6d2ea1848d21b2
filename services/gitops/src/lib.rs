//! fabrique-gitops
