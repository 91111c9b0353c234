//! What can be read and changed over the admin port?
//!
//! | request | meaning |
//! |---|---|
//! | `GET /counters` | the counters as JSON; `DELETE` sets them to nothing |
//! | `GET /faults` | the plan in force as JSON; `PUT` (JSON or YAML) replaces it, `DELETE` ends it |
//! | `PUT /outage` | `{"mode": "refuse", "length": "30s"}` begins an outage, `DELETE` ends it |
//! | `GET /ca.pem` | the certificate of the authority, when the server answers over TLS |
//! | `GET /healthz` | `ok` |

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::counters::Snapshot;
use crate::faults::plan::FaultPlan;
use crate::outage::OutageMode;
use crate::service::Service;
use crate::units::Span;

#[derive(Clone)]
struct Admin {
    service: Arc<Service>,
    ca_pem: Option<Arc<str>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OutageRequest {
    mode: OutageMode,
    length: Span,
}

/// Serves the admin side until stopped.
pub(crate) async fn serve(
    socket: TcpListener,
    service: Arc<Service>,
    ca_pem: Option<String>,
    stop: CancellationToken,
) {
    let admin = Admin { service, ca_pem: ca_pem.map(Arc::from) };
    let router = Router::new()
        .route("/counters", get(counters).delete(reset))
        .route("/faults", get(faults).put(set_faults).delete(clear_faults))
        .route("/outage", axum::routing::put(begin_outage).delete(end_outage))
        .route("/ca.pem", get(ca_pem_file))
        .route("/healthz", get(async || "ok"))
        .with_state(admin);
    let serving = axum::serve(socket, router).with_graceful_shutdown(stop.cancelled_owned());
    if let Err(err) = serving.await {
        tracing::error!(error = %err, "admin port closed");
    }
}

async fn counters(State(admin): State<Admin>) -> Json<Snapshot> {
    Json(admin.service.snapshot())
}

async fn reset(State(admin): State<Admin>) {
    admin.service.counters.reset();
}

async fn faults(State(admin): State<Admin>) -> Json<FaultPlan> {
    Json(admin.service.faults.read().plan().clone())
}

async fn set_faults(State(admin): State<Admin>, body: String) -> Response {
    let refused = |message: String| (StatusCode::BAD_REQUEST, message).into_response();
    match FaultPlan::from_yaml(&body) {
        Ok(plan) => match admin.service.set_faults(plan) {
            Ok(()) => StatusCode::NO_CONTENT.into_response(),
            Err(err) => refused(err.to_string()),
        },
        Err(err) => {
            let cause = std::error::Error::source(&err).map(ToString::to_string).unwrap_or_default();
            refused(format!("{err}: {cause}"))
        }
    }
}

async fn clear_faults(State(admin): State<Admin>) {
    // A plan without rules and rates is always valid.
    let _ = admin.service.set_faults(FaultPlan::default());
}

async fn begin_outage(State(admin): State<Admin>, body: String) -> Response {
    match serde_yaml::from_str::<OutageRequest>(&body) {
        Ok(OutageRequest { mode, length }) => {
            admin.service.outage.begin(mode, length.0);
            StatusCode::NO_CONTENT.into_response()
        }
        Err(err) => {
            let example = r#"write {"mode": "refuse" or "internalError", "length": "30s"}"#;
            (StatusCode::BAD_REQUEST, format!("outage is not valid: {err}: {example}")).into_response()
        }
    }
}

async fn end_outage(State(admin): State<Admin>) {
    admin.service.outage.end();
}

async fn ca_pem_file(State(admin): State<Admin>) -> Response {
    match admin.ca_pem {
        Some(pem) => pem.to_string().into_response(),
        None => (StatusCode::NOT_FOUND, "the server does not answer over TLS").into_response(),
    }
}
