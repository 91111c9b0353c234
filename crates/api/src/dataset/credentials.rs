//! Which keys of a Secret does a worker read?
//!
//! The Secret is a folder of files to the worker, one file a key, and is read again when it changes. Either a pair of keys
//! ([`ACCESS_KEY_ID`], [`SECRET_ACCESS_KEY`]) or a web identity ([`ROLE_ARN`], [`WEB_IDENTITY_TOKEN_FILE`]); [`CA`] goes with both.

/// Id of a static or temporary key.
pub const ACCESS_KEY_ID: &str = "AWS_ACCESS_KEY_ID";
/// The secret of the key.
pub const SECRET_ACCESS_KEY: &str = "AWS_SECRET_ACCESS_KEY";
/// Session token of a temporary key. Optional.
pub const SESSION_TOKEN: &str = "AWS_SESSION_TOKEN";
/// The role to assume with a web identity token.
pub const ROLE_ARN: &str = "AWS_ROLE_ARN";
/// Path of the file that holds the web identity token, on the worker's machine.
pub const WEB_IDENTITY_TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Name of the session of an assumed role. Optional.
pub const ROLE_SESSION_NAME: &str = "AWS_ROLE_SESSION_NAME";
/// URL of the token service, where it is not that of AWS. Optional.
pub const STS_ENDPOINT: &str = "AWS_ENDPOINT_URL_STS";
/// Certificates, in PEM, of the authorities that the endpoint's certificate may be signed by, in place of the system's. Optional.
pub const CA: &str = "ca.crt";

/// All keys that are read.
pub const ALL: [&str; 8] = [
    ACCESS_KEY_ID,
    SECRET_ACCESS_KEY,
    SESSION_TOKEN,
    ROLE_ARN,
    WEB_IDENTITY_TOKEN_FILE,
    ROLE_SESSION_NAME,
    STS_ENDPOINT,
    CA,
];
