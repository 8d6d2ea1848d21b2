//! Liveness, readiness and metrics of a role that runs alone.

use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;

/// Serves `/livez`, `/readyz` and `/metrics` until `stop`.
pub(crate) async fn serve(
    listener: TcpListener,
    metrics: Metrics,
    connected: impl Fn() -> bool + Clone + Send + Sync + 'static,
    stop: CancellationToken,
) {
    let ready = move || {
        let up = connected();
        async move {
            if up {
                (StatusCode::OK, "ready\n")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "the bus is not connected\n")
            }
        }
    };
    let router = Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(move || async move { metrics.render() }));
    let served = axum::serve(listener, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(error) = served.await {
        tracing::error!(%error, "health and metrics are not served any more");
    }
}
