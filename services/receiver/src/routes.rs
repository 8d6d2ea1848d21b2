//! The paths that the receiver answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::Router;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use http::StatusCode;
use http::header::CONTENT_TYPE;

use crate::intake::{Intake, webhook};

/// What the probes and the scraper ask about.
pub(crate) struct Health {
    pub(crate) connected: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) metrics: Box<dyn Fn() -> String + Send + Sync>,
    pub(crate) draining: AtomicBool,
}

pub(crate) fn router(intake: &Arc<Intake>, health: &Arc<Health>) -> Router {
    let readiness = (Arc::clone(intake), Arc::clone(health));
    Router::new()
        .route(&intake.config.path, post(webhook))
        .with_state(Arc::clone(intake))
        .route("/livez", get(async || "alive\n"))
        .merge(Router::new().route("/readyz", get(ready)).with_state(readiness))
        .merge(Router::new().route("/metrics", get(metrics)).with_state(Arc::clone(health)))
}

async fn ready(State((intake, health)): State<(Arc<Intake>, Arc<Health>)>) -> Response {
    let problem = if health.draining.load(Ordering::Relaxed) {
        "shutting down\n"
    } else if !(health.connected)() {
        "not connected to the bus\n"
    } else if !intake.reloads.subscriptions().loaded() {
        "the registrations are not read yet\n"
    } else {
        return "ready\n".into_response();
    };
    (StatusCode::SERVICE_UNAVAILABLE, problem).into_response()
}

async fn metrics(State(health): State<Arc<Health>>) -> Response {
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (health.metrics)()).into_response()
}
