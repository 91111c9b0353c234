//! Which S3 server does a test have in the cluster, what is in its bucket, and how is it disturbed?

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::counters::Snapshot;
use millrace_s3_server::synthetic::{MAX_WINDOW_BYTES, fill};
use sha2::{Digest, Sha256};

use super::namespace::Namespace;
use super::objects::POD;

/// Name of the pod, of its Service and of the Secret.
pub const S3: &str = "s3";

/// Name of the bucket.
pub const BUCKET: &str = "samples";

/// Key id that the server knows.
pub const KEY_ID: &str = "TESTKEY7QXA";
/// The secret of the key.
pub const SECRET_KEY: &str = "test-secret";

/// The first object.
pub const FIRST: &str = "f00000000.bin";

/// For the pod to start on a busy machine.
const START: Duration = Duration::from_secs(60);

/// Objects `f<number>.bin`, with eight digits, with bodies that follow from their keys.
#[derive(Debug, Clone, Copy)]
pub struct Contents {
    /// How many.
    pub objects: u64,
    /// Bytes of each.
    pub bytes: u64,
}

impl Contents {
    /// So many objects of so many bytes.
    pub fn new(objects: u64, bytes: u64) -> Self {
        Self { objects, bytes }
    }

    /// Bytes of all.
    pub fn total_bytes(&self) -> u64 {
        self.objects * self.bytes
    }

    /// Keys of all, in order.
    pub fn keys(&self) -> Vec<String> {
        (0..self.objects).map(|number| format!("f{number:08}.bin")).collect()
    }

    /// The SHA-256 of each body, by its key.
    pub fn sums(&self) -> BTreeMap<String, String> {
        self.keys().into_iter().map(|key| (key.clone(), sum(&key, self.bytes))).collect()
    }
}

/// SHA-256 of a body, in hexadecimal digits.
fn sum(key: &str, bytes: u64) -> String {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; MAX_WINDOW_BYTES];
    let mut offset = 0;
    while offset < bytes {
        let length = (bytes - offset).min(buffer.len() as u64) as usize;
        fill(key, offset, &mut buffer[..length]);
        hash.update(&buffer[..length]);
        offset += length as u64;
    }
    hash.finalize().iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A bucket as the server is told of it.
fn spec_of(Contents { objects, bytes }: Contents) -> String {
    let spec = format!("bucket={BUCKET},objects={objects},size={bytes}");
    let parsed: SyntheticSpec = spec.parse().unwrap();
    assert_eq!(parsed.objects, objects);
    spec
}

/// A running S3 server.
#[derive(Debug)]
pub struct Bucket {
    /// What is in it.
    pub contents: Contents,
    /// Where pods reach it.
    pub endpoint: String,
    /// The admin side, where the test reaches it.
    admin: String,
}

impl Bucket {
    /// Starts a server in a namespace, with the Secret `s3` of its key.
    pub fn start(namespace: &Namespace<'_>, contents: Contents) -> Self {
        Self::serve(namespace, contents, &["--synthetic", &spec_of(contents), "--access-key", KEY_ID], "")
    }

    /// The same, for whoever exchanges a web identity token, any, for keys; the Secret is of no use there.
    pub fn with_token_service(namespace: &Namespace<'_>, contents: Contents) -> Self {
        Self::serve(namespace, contents, &["--synthetic", &spec_of(contents), "--sts"], "")
    }

    /// A server over a folder, with what a script of a shell writes into `/files`; see [`Bucket::change`].
    pub fn of_files(namespace: &Namespace<'_>, script: &str) -> Self {
        let script = serde_json::to_string(script).expect("text is JSON");
        let shell = "image: registry.test/shell:1, volumeMounts: [{name: files, mountPath: /files}], \
                     securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}";
        let more = format!(
            "  - {{name: shell, command: [sleep, \"3600\"], {shell}}}\n  initContainers:\n  \
             - {{name: fill, command: [/bin/sh, -ec, {script}], {shell}}}\n  volumes: [{{name: files, emptyDir: {{}}}}]\n"
        );
        let args = ["/files", "--bucket", BUCKET, "--access-key", KEY_ID];
        Self::serve(namespace, Contents::new(0, 0), &args, &more)
    }

    /// Runs a script of a shell in the folder's pod.
    pub fn change(&self, namespace: &Namespace<'_>, script: &str) {
        namespace.exec(S3, Some("shell"), script);
    }

    /// Starts a server with these arguments; `more` are further lines of the pod's spec, behind its first container.
    fn serve(namespace: &Namespace<'_>, contents: Contents, args: &[&str], more: &str) -> Self {
        let fixed = ["/millrace", "s3", "serve", "--listen", "0.0.0.0:9000", "--admin", "0.0.0.0:9001"];
        let command = serde_json::to_string(&[&fixed, args].concat()).expect("texts are JSON");
        let files = if more.is_empty() {
            ""
        } else {
            "    volumeMounts: [{name: files, mountPath: /files, readOnly: true}]\n"
        };
        let key = if args.contains(&"--access-key") {
            format!(
                "    env: [{{name: MILLRACE_S3_SECRET_KEY, valueFrom: {{secretKeyRef: {{name: {S3}, key: AWS_SECRET_ACCESS_KEY}}}}}}]\n"
            )
        } else {
            String::new()
        };
        namespace.apply(&format!(
            r#"
apiVersion: v1
kind: Secret
metadata: {{name: {S3}}}
stringData: {{AWS_ACCESS_KEY_ID: {KEY_ID}, AWS_SECRET_ACCESS_KEY: {SECRET_KEY}}}
---
apiVersion: v1
kind: Service
metadata: {{name: {S3}}}
spec:
  selector: {{app: {S3}}}
  ports: [{{name: s3, port: 9000}}, {{name: admin, port: 9001}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: {S3}, labels: {{app: {S3}}}}}
spec:
  terminationGracePeriodSeconds: 1
  securityContext: {{runAsNonRoot: true, runAsUser: 65532, seccompProfile: {{type: RuntimeDefault}}}}
  containers:
  - name: s3
    image: registry.test/millrace/csi-driver:dev
    command: {command}
    readinessProbe: {{httpGet: {{path: /healthz, port: 9001}}, periodSeconds: 1}}
    securityContext: {{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {{drop: [ALL]}}}}
{key}{files}{more}"#
        ));
        let address = namespace.wait(POD, S3, "the S3 server is ready", START, |pod| {
            let ready = super::objects::condition(pod, "Ready")?.0 == "True";
            ready.then(|| pod["status"]["podIP"].as_str().map(str::to_owned))?
        });
        let endpoint = format!("http://{S3}.{}.svc:9000", namespace.name);
        Self { contents, endpoint, admin: format!("{address}:9001") }
    }

    /// The YAML of the only source of a Dataset: this bucket, with the credentials of its Secret.
    pub fn source(&self) -> String {
        let endpoint = &self.endpoint;
        format!(
            "{{path: /, s3: {{bucket: {BUCKET}, endpoint: \"{endpoint}\", credentials: {{secretRef: {{name: {S3}}}}}}}}}"
        )
    }

    /// What has been asked for and sent.
    pub fn counters(&self) -> Snapshot {
        let answer = self.request("GET", "/counters", "");
        serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"))
    }

    /// Counts from nothing again.
    pub fn reset_counters(&self) {
        self.request("DELETE", "/counters", "");
    }

    /// A fault plan, as YAML; `{}` for none.
    pub fn set_faults(&self, plan: &str) {
        self.request("PUT", "/faults", plan);
    }

    /// Answers 500 to all for a time.
    pub fn begin_outage(&self, length: Duration) {
        let length = length.as_secs();
        self.request("PUT", "/outage", &format!(r#"{{"mode": "internalError", "length": "{length}s"}}"#));
    }

    /// Ends an outage.
    pub fn end_outage(&self) {
        self.request("DELETE", "/outage", "");
    }

    fn request(&self, method: &str, path: &str, body: &str) -> String {
        let address = &self.admin;
        let mut stream = TcpStream::connect(address).unwrap_or_else(|error| panic!("{address}: {error}"));
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
        );
        stream.write_all((head + body).as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {answer}"));
        assert!(head.starts_with("HTTP/1.1 2"), "{method} {path}: {answer}");
        body.to_owned()
    }
}
