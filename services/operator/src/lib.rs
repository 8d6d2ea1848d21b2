//! fabrique-operator
