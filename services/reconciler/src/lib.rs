//! fabrique-reconciler
