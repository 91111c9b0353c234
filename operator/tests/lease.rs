//! Does one of several operators hold the lease, and does another take it over in time? Against a server that keeps one Lease as
//! the API server does.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use k8s_openapi::api::coordination::v1::Lease;
use kube::{Api, Client, Config};
use millrace_operator::lease::{DURATION, Held, Keeper, RENEW_EVERY};
use parking_lot::Mutex;
use serde_json::{Value, json};

/// The Lease and how often it was written.
type Kept = Arc<Mutex<(Option<Value>, u64)>>;

async fn read(State(kept): State<Kept>) -> (StatusCode, Json<Value>) {
    match kept.lock().0.clone() {
        Some(lease) => (StatusCode::OK, Json(lease)),
        None => refuse(StatusCode::NOT_FOUND, "NotFound"),
    }
}

async fn create(State(kept): State<Kept>, Json(lease): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut kept = kept.lock();
    if kept.0.is_some() {
        return refuse(StatusCode::CONFLICT, "AlreadyExists");
    }
    (StatusCode::CREATED, Json(write(&mut kept, lease)))
}

async fn replace(State(kept): State<Kept>, Json(lease): Json<Value>) -> (StatusCode, Json<Value>) {
    let mut kept = kept.lock();
    let version = kept.0.as_ref().map(|lease| lease["metadata"]["resourceVersion"].clone());
    if version.as_ref() != Some(&lease["metadata"]["resourceVersion"]) {
        return refuse(StatusCode::CONFLICT, "Conflict");
    }
    (StatusCode::OK, Json(write(&mut kept, lease)))
}

fn write(kept: &mut (Option<Value>, u64), mut lease: Value) -> Value {
    kept.1 += 1;
    lease["metadata"]["resourceVersion"] = json!(kept.1.to_string());
    kept.0 = Some(lease.clone());
    lease
}

fn refuse(code: StatusCode, reason: &str) -> (StatusCode, Json<Value>) {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": reason,
        "reason": reason, "code": code.as_u16(),
    });
    (code, Json(status))
}

/// Serves until the runtime ends.
async fn serve() -> (SocketAddr, Kept) {
    let kept = Kept::default();
    let leases = "/apis/coordination.k8s.io/v1/namespaces/ns/leases";
    let router = Router::new()
        .route(leases, post(create))
        .route(&format!("{leases}/{{name}}"), get(read).put(replace))
        .with_state(Arc::clone(&kept));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    (address, kept)
}

fn keeper(address: SocketAddr, holder: &str) -> (Keeper, Held) {
    // Only fails where one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client = Client::try_from(Config::new(format!("http://{address}").parse().unwrap())).unwrap();
    let held = Held::default();
    let api: Api<Lease> = Api::namespaced(client, "ns");
    (Keeper::new(api, "lease".into(), holder.into(), held.clone()), held)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_ask_at_once_one_holds_it() {
    let (address, _) = serve().await;
    for _ in 0..20 {
        let (mut a, held_a) = keeper(address, "a");
        let (mut b, held_b) = keeper(address, "b");
        let (first, second) = tokio::join!(a.look(), b.look());
        assert!(first.unwrap() ^ second.unwrap());
        assert!(held_a.is_held() ^ held_b.is_held());
        a.release().await;
        b.release().await;
    }
}

#[tokio::test]
async fn one_that_is_given_back_is_taken_at_once() {
    let (address, kept) = serve().await;
    let (mut a, held_a) = keeper(address, "a");
    let (mut b, held_b) = keeper(address, "b");
    assert!(a.look().await.unwrap() && !b.look().await.unwrap());
    a.release().await;
    assert!(!held_a.is_held());
    assert!(b.look().await.unwrap() && held_b.is_held());
    let lease = kept.lock().0.clone().unwrap();
    assert_eq!(
        (lease["spec"]["holderIdentity"].as_str(), &lease["spec"]["leaseTransitions"]),
        (Some("b"), &json!(1))
    );
    assert!(!a.look().await.unwrap(), "it is another's");
}

#[tokio::test]
async fn a_holder_that_dies_is_succeeded_within_15_seconds_and_writes_nothing_by_then() {
    let (address, _) = serve().await;
    let (mut dead, held_dead) = keeper(address, "dead");
    let (mut heir, _) = keeper(address, "heir");
    assert!(dead.look().await.unwrap());
    let died = Instant::now();
    while !heir.look().await.unwrap() {
        assert!(died.elapsed() < Duration::from_secs(15), "not taken over");
        tokio::time::sleep(RENEW_EVERY).await;
    }
    assert!(died.elapsed() >= DURATION, "a lease that holds was taken");
    assert!(!held_dead.is_held());
}
