//! Where are a source's objects, and how are they reached?

use std::path::PathBuf;
use std::time::Duration;

/// How the bucket is named in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Addressing {
    /// `endpoint/bucket/key`. What most servers other than AWS expect.
    #[default]
    Path,
    /// `bucket.endpoint/key`.
    VirtualHosted,
}

/// Where the credentials of a source come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CredentialsConfig {
    /// A folder of files, one for each key of [`millrace_api::dataset::credentials`], read again when they change.
    Folder(PathBuf),
    /// A named profile of the SDK's configuration files.
    Profile(String),
    /// A role, assumed with a token that someone keeps in a file.
    WebIdentity(WebIdentity),
    /// None: requests are not signed.
    Anonymous,
    /// Whatever the SDK finds: environment, profile, web identity, container, instance.
    Chain,
}

/// A role that is assumed with a web identity token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WebIdentity {
    /// ARN of the role.
    pub role_arn: String,
    /// File that holds the token; read at each renewal.
    pub token_file: PathBuf,
    /// Name of the session, `millrace` where there is none.
    pub session_name: Option<String>,
    /// URL of the token service, that of AWS in the source's region where there is none.
    pub sts_endpoint: Option<String>,
}

/// Everything that makes up one source's S3 side.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OriginConfig {
    /// URL of the endpoint; `None` is AWS, in `region`.
    pub endpoint: Option<String>,
    /// Region of the bucket; learned from the server where it is missing or wrong.
    pub region: Option<String>,
    /// Bucket.
    pub bucket: String,
    /// How the bucket is named in requests.
    pub addressing: Addressing,
    /// Where the credentials come from.
    pub credentials: CredentialsConfig,
    /// PEM file of the authorities that are trusted in place of the system's. A folder's `ca.crt` comes before it.
    pub ca: Option<PathBuf>,
    /// Whether requests say that we pay for them.
    pub requester_pays: bool,
    /// How long each step may take.
    pub deadlines: Deadlines,
}

/// How long a step of one try may take before the try is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Deadlines {
    /// To connect, TLS included.
    pub connect: Duration,
    /// From the request to the head of the answer, on the first try; each further try may take twice as long as the
    /// one before, up to [`Deadlines::LONGEST_WAIT`], so that a server that is slow but sound is heard out.
    pub first_byte: Duration,
    /// Between two pieces of a body; grows likewise.
    pub stall: Duration,
}

impl Deadlines {
    /// No single wait is longer. A quarter of a read's usual deadline of 120 s.
    pub const LONGEST_WAIT: Duration = Duration::from_secs(30);

    pub(super) fn grown(wait: Duration, tries: u32) -> Duration {
        wait.saturating_mul(1 << tries.min(8)).min(Self::LONGEST_WAIT.max(wait))
    }
}

impl Default for Deadlines {
    /// Guesses: S3 answers in well under a second, save for rare outliers that are better asked again.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(3),
            first_byte: Duration::from_secs(5),
            stall: Duration::from_secs(5),
        }
    }
}

impl OriginConfig {
    /// A bucket at an endpoint, with everything else as it is when the Dataset says nothing.
    pub fn at(
        endpoint: impl Into<String>,
        bucket: impl Into<String>,
        credentials: CredentialsConfig,
    ) -> Self {
        Self {
            endpoint: Some(endpoint.into()),
            region: None,
            bucket: bucket.into(),
            addressing: Addressing::Path,
            credentials,
            ca: None,
            requester_pays: false,
            deadlines: Deadlines::default(),
        }
    }

    /// The endpoint as [`millrace_api::ids::OriginId::of`] and messages name it.
    pub fn endpoint_name(&self) -> String {
        match (&self.endpoint, &self.region) {
            (Some(url), _) => url.clone(),
            (None, Some(region)) => format!("region:{region}"),
            (None, None) => format!("region:{DEFAULT_REGION}"),
        }
    }
}

/// The region that signatures name where none is given; what S3 servers other than AWS accept too.
pub(super) const DEFAULT_REGION: &str = "us-east-1";
