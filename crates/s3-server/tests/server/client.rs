//! How do the tests talk to the server?

use std::time::Duration;

use aws_credential_types::Credentials;
use aws_sdk_s3::Client;
use aws_sdk_s3::config::{BehaviorVersion, Builder, Region, ResponseChecksumValidation};
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_smithy_runtime_api::client::orchestrator::HttpResponse;
use aws_smithy_types::retry::RetryConfig;
use aws_smithy_types::timeout::TimeoutConfig;
use millrace_s3_server::server::S3Server;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The settings that all clients share: one try, no waiting for ever.
pub fn settings(endpoint: &str) -> Builder {
    let timeouts = TimeoutConfig::builder().operation_timeout(Duration::from_secs(20)).build();
    aws_sdk_s3::Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .endpoint_url(endpoint)
        .region(Region::new("us-east-1"))
        .force_path_style(true)
        .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
        .retry_config(RetryConfig::disabled())
        .timeout_config(timeouts)
        .http_client(aws_smithy_http_client::Builder::new().build_http())
}

/// A client without credentials.
pub fn anonymous(server: &S3Server) -> Client {
    Client::from_conf(settings(&server.endpoint()).allow_no_auth().build())
}

/// A client with credentials.
pub fn signed(server: &S3Server, access: &str, secret: &str, token: Option<&str>) -> Client {
    let credentials = Credentials::new(access, secret, token.map(str::to_owned), None, "test");
    Client::from_conf(settings(&server.endpoint()).credentials_provider(credentials).build())
}

/// Status and S3 error code of a failed call; the code is empty where the answer had none.
pub fn refusal<T: std::fmt::Debug, E>(result: Result<T, SdkError<E, HttpResponse>>) -> (u16, String)
where
    E: ProvideErrorMetadata + std::fmt::Debug,
{
    let err = result.unwrap_err();
    let status = err.raw_response().map_or(0, |response| response.status().as_u16());
    (status, err.code().unwrap_or_default().to_owned())
}

/// All bytes of an object.
pub async fn get(client: &Client, bucket: &str, key: &str) -> Vec<u8> {
    let object = client.get_object().bucket(bucket).key(key).send().await.unwrap();
    object.body.collect().await.unwrap().to_vec()
}

/// Sends a request as it is written, and returns all that comes back until the server closes.
pub async fn raw(server: &S3Server, request: &str) -> String {
    let mut stream = TcpStream::connect(server.address()).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// A request with a body to an address, and the status and body of its answer.
pub async fn http(url: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let address = url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(body.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}
