//! Does the webhook serve over TLS that the API server is told to trust, and go on doing so?

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod fake_api;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use fake_api::FakeApi;
use k8s_openapi::ByteString;
use millrace_daemon::readiness::Readiness;
use millrace_operator::lease::Held;
use millrace_operator::webhook::metrics::WebhookMetrics;
use millrace_operator::webhook::{Webhook, WebhookConfig, WebhookPort, run};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const SECRET: &str = "/api/v1/namespaces/millrace-system/secrets/millrace-webhook-certificate";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/millrace";
const VALIDATING: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/millrace";

struct Replica {
    address: SocketAddr,
    readiness: Readiness,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<Result<(), millrace_operator::webhook::WebhookError>>,
}

async fn replica(api: &FakeApi, lease: Held) -> Replica {
    let port = WebhookPort::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let (address, readiness, stop) = (port.address(), Readiness::new(), CancellationToken::new());
    let webhook = Webhook {
        client: api.client.clone(),
        config: WebhookConfig {
            namespace: "millrace-system".into(),
            certificate_secret: "millrace-webhook-certificate".into(),
            service: "millrace-webhook".into(),
            configuration: "millrace".into(),
        },
        metrics: WebhookMetrics::register(&prometheus::Registry::new()).unwrap(),
        certificate: readiness.condition("certificate", "none yet"),
        trust: readiness.condition("trust", "not known yet"),
        lease,
    };
    let task = tokio::spawn(run(webhook, port, stop.clone()));
    Replica { address, readiness, stop, task }
}

fn configuration(kind: &str) -> Value {
    let client =
        json!({"service": {"name": "millrace-webhook", "namespace": "millrace-system", "path": "/x"}});
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": "millrace"},
        "webhooks": [{"name": "pods.millrace.dev", "clientConfig": client}],
    })
}

/// The bundle of a configuration, once there is one.
fn bundle(api: &FakeApi, path: &str) -> Option<Vec<u8>> {
    let bundle = api.get(path)?.pointer("/webhooks/0/clientConfig/caBundle")?.clone();
    Some(serde_json::from_value::<ByteString>(bundle).unwrap().0)
}

/// Asks as the API server does: by the Service's name, trusting only the bundle.
async fn ask(address: SocketAddr, bundle: &[u8], request: &str) -> Result<String, std::io::Error> {
    let mut roots = rustls::RootCertStore::empty();
    for authority in CertificateDer::pem_slice_iter(bundle) {
        roots.add(authority.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("millrace-webhook.millrace-system.svc").unwrap();
    let stream = TcpStream::connect(address).await?;
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    match stream.read_to_string(&mut answer).await {
        // Not all servers say good-bye.
        Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error),
        Ok(_) | Err(_) => Ok(answer),
    }
}

async fn post(address: SocketAddr, bundle: &[u8], path: &str, body: &Value) -> Value {
    let body = body.to_string();
    let request = format!(
        "POST {path} HTTP/1.1\r\nHost: webhook\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    let answer = ask(address, bundle, &request).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{answer}");
    serde_json::from_str(body).unwrap()
}

fn review(kind: &str, object: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "42", "operation": "CREATE", "namespace": "vision", "name": "", "dryRun": false,
            "kind": {"group": "", "version": "v1", "kind": kind},
            "resource": {"group": "", "version": "v1", "resource": "x"},
            "userInfo": {}, "object": object, "oldObject": null,
        },
    })
}

fn annotated_pod(annotation: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "train", "annotations": {"millrace.dev/dataset": annotation}},
        "spec": {"containers": [{"name": "main", "image": "x"}]},
    })
}

#[tokio::test]
async fn the_api_server_is_told_whom_to_trust_and_its_reviews_are_answered() {
    let api = FakeApi::start().await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    api.put(VALIDATING, configuration("ValidatingWebhookConfiguration"));
    let replica = replica(&api, Held::always()).await;
    let trusted = api.until("a bundle", |api| bundle(api, MUTATING)).await;
    assert_eq!(api.until("the other bundle", |api| bundle(api, VALIDATING)).await, trusted);
    api.until("readiness", |_| replica.readiness.unmet().is_empty().then_some(())).await;

    let pod = annotated_pod("imagenet=/data");
    let answer = post(replica.address, &trusted, "/mutate-pods", &review("Pod", &pod)).await;
    let response = &answer["response"];
    assert_eq!(
        (&response["uid"], &response["allowed"], &response["patchType"]),
        (&json!("42"), &json!(true), &json!("JSONPatch"))
    );
    // As a list of numbers, which the API server takes as well as base64.
    let patch: Vec<u8> = serde_json::from_value(response["patch"].clone()).unwrap();
    let patch: json_patch::Patch = serde_json::from_slice(&patch).unwrap();
    let mut patched = pod;
    json_patch::patch(&mut patched, &patch).unwrap();
    assert_eq!(patched["spec"]["volumes"][0]["persistentVolumeClaim"]["claimName"], "imagenet");

    let refused =
        post(replica.address, &trusted, "/mutate-pods", &review("Pod", &annotated_pod("imagenet"))).await;
    let status = &refused["response"]["status"];
    assert_eq!((&refused["response"]["allowed"], &status["code"]), (&json!(false), &json!(422)));
    assert!(status["message"].as_str().unwrap().contains("\"imagenet=/data\""), "{status}");

    let template = annotated_pod("imagenet=data");
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": {"template": template}});
    let refused = post(replica.address, &trusted, "/validate-templates", &review("Job", &job)).await;
    assert!(
        refused["response"]["status"]["message"].as_str().unwrap().starts_with("its pods would be refused")
    );

    let garbage = post(replica.address, &trusted, "/mutate-pods", &json!({"kind": "x"})).await;
    assert_eq!(garbage["response"]["allowed"], json!(false));
    let health = ask(replica.address, &trusted, HEALTH).await;
    assert!(health.unwrap().starts_with("HTTP/1.1 200"));
    let stranger = ask(replica.address, b"", "GET /healthz HTTP/1.1\r\n\r\n").await;
    assert!(stranger.is_err(), "who does not know the authority must not trust us");
}

#[tokio::test]
async fn replicas_that_start_together_show_one_certificate_and_only_the_leader_writes_trust() {
    let api = FakeApi::start().await;
    let mut replicas = Vec::new();
    for _ in 0..4 {
        replicas.push(replica(&api, Held::default()).await);
    }
    for replica in &replicas {
        api.until("a certificate", |_| (waits_for(replica) == ["trust"]).then_some(())).await;
    }
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    let held = api.get(SECRET).unwrap()["data"]["certificates.json"].clone();
    let ByteString(held) = serde_json::from_value(held).unwrap();
    let held: Value = serde_json::from_slice(&held).unwrap();
    let authority = held["shown"]["authority"].as_str().unwrap().as_bytes().to_vec();
    for replica in &replicas {
        let health =
            ask(replica.address, &authority, "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                .await;
        assert!(health.unwrap().starts_with("HTTP/1.1 200"));
    }
    assert_eq!(bundle(&api, MUTATING), None);
    let _leader = replica(&api, Held::always()).await;
    assert_eq!(api.until("a bundle", |api| bundle(api, MUTATING)).await, authority);
}

#[tokio::test]
async fn replicas_are_ready_once_the_leader_has_told_the_api_server_whom_to_trust_and_not_before() {
    let api = FakeApi::start().await;
    let follower = replica(&api, Held::default()).await;
    let reason = |replica: &Replica, part: &str| {
        let unmet = replica.readiness.unmet();
        unmet.iter().any(|unmet| unmet.name == "trust" && unmet.reason.contains(part)).then_some(())
    };
    api.until("that there is none", |_| reason(&follower, "there is no Mutating")).await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    api.until("that it is not trusted", |_| reason(&follower, "does not trust")).await;
    assert_eq!(waits_for(&follower), ["trust"]);
    let leader = replica(&api, Held::always()).await;
    for replica in [&follower, &leader] {
        api.until("readiness", |_| replica.readiness.unmet().is_empty().then_some(())).await;
    }
    let trusted = bundle(&api, MUTATING).unwrap();
    assert!(ask(follower.address, &trusted, HEALTH).await.is_ok());
    // Of leaders there is one at a time, and now there is none.
    leader.task.abort();
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    api.until("that it is not trusted any more", |_| reason(&follower, "does not trust")).await;
    api.delete(MUTATING);
    api.until("that it is gone", |_| reason(&follower, "there is no Mutating")).await;
}

#[tokio::test]
async fn a_follower_that_is_not_trusted_shows_at_once_what_the_leader_shows() {
    let api = FakeApi::start().await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    let leader = replica(&api, Held::always()).await;
    let follower = replica(&api, Held::default()).await;
    api.until("readiness", |_| follower.readiness.unmet().is_empty().then_some(())).await;
    leader.task.abort();
    // The cluster slept for a quarter of a year: the next leader makes another certificate at once.
    let mut certificates = held(&api).await;
    certificates["shown"]["until"] = json!("2020-01-01T00:00:00Z");
    hold(&api, &certificates);
    let old = bundle(&api, MUTATING).unwrap();
    let _heir = replica(&api, Held::always()).await;
    let new = api.until("another", |api| bundle(api, MUTATING).filter(|bundle| *bundle != old)).await;
    let shows_the_new = async {
        while ask(follower.address, &new, HEALTH).await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    // Without being told it would look at the Secret once a minute.
    tokio::time::timeout(Duration::from_secs(20), shows_the_new).await.unwrap();
    api.until("readiness", |_| follower.readiness.unmet().is_empty().then_some(())).await;
}

/// Names of what a replica waits for.
fn waits_for(replica: &Replica) -> Vec<&'static str> {
    replica.readiness.unmet().iter().map(|unmet| unmet.name).collect()
}

#[tokio::test]
async fn a_configuration_that_is_put_back_or_made_again_is_told_again() {
    let api = FakeApi::start().await;
    let _replica = replica(&api, Held::always()).await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    let first = api.until("a bundle", |api| bundle(api, MUTATING)).await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    assert_eq!(api.until("the bundle again", |api| bundle(api, MUTATING)).await, first);
    api.delete(MUTATING);
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    assert_eq!(api.until("the bundle once more", |api| bundle(api, MUTATING)).await, first);
    let patches = api.asked(&format!("PATCH {MUTATING}"));
    assert_eq!(patches, 3, "what is right is not written again");
}

#[tokio::test]
async fn a_secret_that_nobody_can_read_is_made_anew_by_the_leader() {
    let api = FakeApi::start().await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    let secret = |content: &str| {
        let content = ByteString(content.as_bytes().to_vec());
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "millrace-webhook-certificate"},
            "data": {"certificates.json": content},
        })
    };
    api.put(SECRET, secret("{"));
    let follower = replica(&api, Held::default()).await;
    api.until("the reason", |_| {
        follower
            .readiness
            .unmet()
            .first()
            .is_some_and(|unmet| unmet.reason.contains("not readable"))
            .then_some(())
    })
    .await;
    let leader = replica(&api, Held::always()).await;
    for replica in [&follower, &leader] {
        api.until("readiness", |_| replica.readiness.unmet().is_empty().then_some(())).await;
    }
}

/// What the Secret holds, once it does.
async fn held(api: &FakeApi) -> Value {
    let content =
        api.until("certificates", |api| Some(api.get(SECRET)?["data"]["certificates.json"].clone())).await;
    let ByteString(content) = serde_json::from_value(content).unwrap();
    serde_json::from_slice(&content).unwrap()
}

/// Changes what the Secret holds, as time or somebody would.
fn hold(api: &FakeApi, held: &Value) {
    let mut secret = api.get(SECRET).unwrap();
    secret["data"]["certificates.json"] = json!(ByteString(held.to_string().into_bytes()));
    api.put(SECRET, secret);
}

const HEALTH: &str = "GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

#[tokio::test]
async fn old_and_new_certificate_are_both_trusted_while_replicas_change_over() {
    let api = FakeApi::start().await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    let early = replica(&api, Held::default()).await;
    let mut certificates = held(&api).await;
    // Two thirds of its life are over: the next replica that leads makes another.
    certificates["shown"]["since"] = json!("2020-01-01T00:00:00Z");
    hold(&api, &certificates);
    let second = replica(&api, Held::always()).await;
    let both = api
        .until("both authorities", |api| {
            let bundle = bundle(api, MUTATING)?;
            (CertificateDer::pem_slice_iter(&bundle).count() == 2).then_some(bundle)
        })
        .await;
    api.until("readiness", |_| early.readiness.unmet().is_empty().then_some(())).await;
    certificates = held(&api).await;
    let (old, new) = (certificates["shown"]["authority"].clone(), certificates["next"]["authority"].clone());
    assert_ne!(old, new);
    // Of leaders there is one at a time.
    second.task.abort();
    // The time of overlap is over: the next one is shown.
    certificates["next"]["since"] = json!("2020-01-01T00:00:00Z");
    hold(&api, &certificates);
    let late = replica(&api, Held::always()).await;
    api.until("readiness", |_| late.readiness.unmet().is_empty().then_some(())).await;
    let shown = held(&api).await["shown"]["authority"].clone();
    assert_ne!(shown, old);
    assert!(ask(late.address, new.as_str().unwrap().as_bytes(), HEALTH).await.is_ok());
    for replica in [&early, &late] {
        assert!(ask(replica.address, &both, HEALTH).await.is_ok());
        assert_eq!(waits_for(replica), Vec::<&str>::new(), "it does not lose its readiness on the way");
    }
}

#[tokio::test]
async fn it_goes_on_accepting_for_a_moment_when_it_is_to_end() {
    let api = FakeApi::start().await;
    api.put(MUTATING, configuration("MutatingWebhookConfiguration"));
    let replica = replica(&api, Held::always()).await;
    let trusted = api.until("a bundle", |api| bundle(api, MUTATING)).await;
    replica.stop.cancel();
    let answer =
        post(replica.address, &trusted, "/mutate-pods", &review("Pod", &annotated_pod("a=/data"))).await;
    assert_eq!(answer["response"]["allowed"], json!(true));
    tokio::time::timeout(Duration::from_secs(10), replica.task).await.unwrap().unwrap().unwrap();
    assert!(TcpStream::connect(replica.address).await.is_err());
}
