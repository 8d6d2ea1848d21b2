//! fabrique-journeys
