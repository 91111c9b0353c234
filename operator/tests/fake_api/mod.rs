//! An API server of a few objects: get, list and watch by label, create, patch, apply and delete, over real HTTP, with resource
//! versions. An apply is a merge: it takes no field away.

#![expect(dead_code, reason = "each test program uses its own part")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use kube::Client;
use serde_json::{Value, json};
use tokio::sync::watch;

/// A running server. It ends with the test's runtime.
#[derive(Clone)]
pub struct FakeApi {
    shared: Arc<Shared>,
    pub client: Client,
}

struct Shared {
    state: Mutex<Store>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Store {
    /// By path, such as `/api/v1/namespaces/n/secrets/s`.
    objects: BTreeMap<String, Value>,
    /// Every change: version, kind of change, path, object.
    log: Vec<(u64, &'static str, String, Value)>,
    version: u64,
    /// Requests that were refused or carried out, as `METHOD path`.
    requests: Vec<String>,
    /// The answer to requests that are refused, by `METHOD path`.
    refusals: BTreeMap<String, String>,
}

impl FakeApi {
    pub async fn start() -> Self {
        // Of several in one process the first installs it.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let shared = Arc::new(Shared { state: Mutex::default(), changed: watch::channel(0).0 });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, router).await });
        let config = kube::Config::new(format!("http://{address}").parse().unwrap());
        Self { shared, client: Client::try_from(config).unwrap() }
    }

    /// Puts an object at its path, new or not.
    pub fn put(&self, path: &str, mut object: Value) {
        let mut state = self.shared.state.lock().unwrap();
        state.store(path, &mut object);
        self.shared.changed.send_replace(state.version);
    }

    pub fn delete(&self, path: &str) {
        let mut state = self.shared.state.lock().unwrap();
        state.remove(path);
        self.shared.changed.send_replace(state.version);
    }

    pub fn get(&self, path: &str) -> Option<Value> {
        self.shared.state.lock().unwrap().objects.get(path).cloned()
    }

    /// Objects whose path has this part.
    pub fn all(&self, part: &str) -> Vec<Value> {
        let state = self.shared.state.lock().unwrap();
        state
            .objects
            .iter()
            .filter(|(path, _)| path.contains(part))
            .map(|(_, object)| object.clone())
            .collect()
    }

    /// How often something was asked, as `METHOD path`.
    pub fn asked(&self, request: &str) -> usize {
        self.shared.state.lock().unwrap().requests.iter().filter(|asked| *asked == request).count()
    }

    /// All requests that would change something, refused or not, as `METHOD path`.
    pub fn writes(&self) -> Vec<String> {
        let state = self.shared.state.lock().unwrap();
        state.requests.iter().filter(|asked| !asked.starts_with("GET ")).cloned().collect()
    }

    /// Refuses a request, given as `METHOD path`, as an admission plugin does; with `None` no more.
    pub fn refuse(&self, request: &str, message: Option<&str>) {
        let refusals = &mut self.shared.state.lock().unwrap().refusals;
        match message {
            Some(message) => refusals.insert(request.to_owned(), message.to_owned()),
            None => refusals.remove(request),
        };
    }

    /// Waits until something is so; looks whenever an object changes.
    pub async fn until<T>(&self, what: &str, mut look: impl FnMut(&Self) -> Option<T>) -> T {
        let mut changed = self.shared.changed.subscribe();
        let wait = async {
            loop {
                if let Some(found) = look(self) {
                    return found;
                }
                // Also looks from time to time at what is no object.
                let soon = tokio::time::sleep(std::time::Duration::from_millis(50));
                tokio::select! { _ = changed.changed() => {}, () = soon => {} }
            }
        };
        let deadline = std::time::Duration::from_secs(30);
        tokio::time::timeout(deadline, wait).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
    }
}

impl Store {
    fn store(&mut self, path: &str, object: &mut Value) {
        self.version += 1;
        object["metadata"]["resourceVersion"] = json!(self.version.to_string());
        if object["metadata"].get("uid").is_none() {
            object["metadata"]["uid"] = json!(format!("uid-{}", self.version));
        }
        if object["metadata"].get("creationTimestamp").is_none() {
            object["metadata"]["creationTimestamp"] = json!(k8s_openapi::jiff::Timestamp::now());
        }
        let kind = if self.objects.contains_key(path) { "MODIFIED" } else { "ADDED" };
        self.objects.insert(path.to_owned(), object.clone());
        self.log.push((self.version, kind, path.to_owned(), object.clone()));
    }

    fn remove(&mut self, path: &str) -> Option<Value> {
        let object = self.objects.remove(path)?;
        self.version += 1;
        self.log.push((self.version, "DELETED", path.to_owned(), object.clone()));
        Some(object)
    }
}

async fn answer(
    State(shared): State<Arc<Shared>>,
    method: Method,
    uri: Uri,
    headers: axum::http::HeaderMap,
    body: Bytes,
) -> Response {
    let path = uri.path().to_owned();
    let query: BTreeMap<String, String> = uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='))
        .map(|(key, value)| {
            (key.to_owned(), value.replace("%3D", "=").replace("%2C", ",").replace("%2F", "/"))
        })
        .collect();
    if query.get("watch").is_some_and(|value| value == "true" || value == "1") {
        return watch_answer(&shared, path, &query);
    }
    let mut state = shared.state.lock().unwrap();
    let request = format!("{method} {path}");
    state.requests.push(request.clone());
    if let Some(message) = state.refusals.get(&request) {
        return status(403, message);
    }
    let answer = match method {
        Method::GET => get(&state, &path, &query),
        Method::DELETE => delete(&mut state, &path),
        Method::POST => create(&mut state, &path, &body),
        Method::PATCH => {
            let kind =
                headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
            patch(&mut state, &path, kind, &body)
        }
        _ => status(405, "no such method"),
    };
    shared.changed.send_replace(state.version);
    answer
}

fn get(state: &Store, path: &str, query: &BTreeMap<String, String>) -> Response {
    if let Some(object) = state.objects.get(path) {
        return axum::Json(object.clone()).into_response();
    }
    let items: Vec<_> =
        state.objects.iter().filter(|(of, object)| is_in(of, path) && is_selected(object, query)).collect();
    let items: Vec<_> = items.into_iter().map(|(_, object)| object).collect();
    // A path with a name is no collection; ours all end in a plural.
    if items.is_empty() && !path.ends_with('s') {
        return status(404, "not found");
    }
    let list = json!({
        "apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": state.version.to_string()}, "items": items,
    });
    axum::Json(list).into_response()
}

/// Whether an object is in a collection, of its namespace or of all.
fn is_in(object: &str, collection: &str) -> bool {
    let Some((parent, _)) = object.rsplit_once('/') else { return false };
    let across = parent.split_once("/namespaces/").map(|(group, rest)| {
        let plural = rest.split_once('/').map_or("", |(_, plural)| plural);
        format!("{group}/{plural}")
    });
    parent == collection || across.as_deref() == Some(collection)
}

/// Whether an object has the labels that are asked for.
fn is_selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let selector = query.get("labelSelector").map(String::as_str).unwrap_or_default();
    selector.split(',').filter(|term| !term.is_empty()).all(|term| match term.split_once('=') {
        Some((key, value)) => object["metadata"]["labels"][key] == value,
        None => object["metadata"]["labels"].get(term).is_some(),
    })
}

fn delete(state: &mut Store, path: &str) -> Response {
    match state.remove(path) {
        Some(object) => axum::Json(object).into_response(),
        None => status(404, "not found"),
    }
}

fn create(state: &mut Store, path: &str, body: &[u8]) -> Response {
    let mut object: Value = serde_json::from_slice(body).unwrap();
    let path = format!("{path}/{}", object["metadata"]["name"].as_str().unwrap());
    if state.objects.contains_key(&path) {
        return status(409, "already exists");
    }
    state.store(&path, &mut object);
    (StatusCode::CREATED, axum::Json(object)).into_response()
}

fn patch(state: &mut Store, path: &str, kind: &str, body: &[u8]) -> Response {
    let (path, is_status) = path.strip_suffix("/status").map_or((path, false), |path| (path, true));
    let Some(mut object) = state.objects.get(path).cloned() else { return status(404, "not found") };
    if kind.contains("json-patch") {
        let patch: json_patch::Patch = serde_json::from_slice(body).unwrap();
        if json_patch::patch(&mut object, &patch).is_err() {
            return status(422, "the patch does not apply");
        }
    } else {
        let patch: Value = serde_json::from_slice(body).unwrap();
        let wanted = patch.pointer("/metadata/resourceVersion").cloned();
        if wanted.is_some_and(|wanted| wanted != object["metadata"]["resourceVersion"]) {
            return status(409, "the object has been modified");
        }
        if is_status {
            object["status"] = patch["status"].clone();
        } else {
            json_patch::merge(&mut object, &patch);
        }
    }
    state.store(path, &mut object);
    axum::Json(object).into_response()
}

fn watch_answer(shared: &Arc<Shared>, path: String, query: &BTreeMap<String, String>) -> Response {
    let from: u64 = query.get("resourceVersion").and_then(|version| version.parse().ok()).unwrap_or(0);
    let name = query
        .get("fieldSelector")
        .and_then(|selector| selector.strip_prefix("metadata.name="))
        .map(|name| format!("/{name}"));
    let shared = Arc::clone(shared);
    let changes = shared.changed.subscribe();
    let query = query.clone();
    let stream = futures::stream::unfold((shared, changes, from), move |(shared, mut changes, from)| {
        let (path, name, query) = (path.clone(), name.clone(), query.clone());
        async move {
            loop {
                changes.borrow_and_update();
                let (lines, at) = {
                    let state = shared.state.lock().unwrap();
                    let news = state.log.iter().filter(|(version, _, of, object)| {
                        *version > from
                            && is_in(of, &path)
                            && is_selected(object, &query)
                            && name.as_ref().is_none_or(|name| of.ends_with(name))
                    });
                    let lines: String = news
                        .map(|(_, kind, _, object)| format!("{}\n", json!({"type": kind, "object": object})))
                        .collect();
                    (lines, state.version)
                };
                if !lines.is_empty() {
                    return Some((Ok::<_, Infallible>(Bytes::from(lines)), (shared, changes, at)));
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        }
    });
    Body::from_stream(stream).into_response()
}

fn status(code: u16, message: &str) -> Response {
    let reason = match code {
        404 => "NotFound",
        403 => "Forbidden",
        409 => "Conflict",
        _ => "Invalid",
    };
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": message, "reason": reason,
    });
    (StatusCode::from_u16(code).unwrap(), axum::Json(body)).into_response()
}
