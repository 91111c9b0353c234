//! Who is let in, and how are the others told why not?

use std::net::Ipv4Addr;
use std::time::Duration;

use aws_sdk_s3::Client;
use aws_sdk_s3::config::Region;
use aws_sdk_s3::types::EncodingType;
use aws_smithy_http_client::tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode};
use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns};
use aws_smithy_types::retry::RetryConfig;
use millrace_s3_server::auth::{Access, Credentials};
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::config::BucketConfig;
use millrace_s3_server::region::Redirect;
use millrace_s3_server::server::{Builder, S3Server};
use millrace_s3_server::sts::StsConfig;
use millrace_s3_server::target::Operation;

use crate::client::{anonymous, get, http, raw, refusal, settings, signed};

fn objects() -> InMemory {
    InMemory::new().with("k", "body").with("sp ace/ü+%\u{1}", "awkward")
}

fn locked() -> Builder {
    S3Server::builder().bucket("data", objects()).access(Access::signed(Credentials::new("AK", "SK")))
}

async fn read(client: &Client) -> (u16, String) {
    match client.get_object().bucket("data").key("k").send().await {
        Ok(_) => (200, String::new()),
        Err(err) => refusal::<(), _>(Err(err)),
    }
}

fn is(status: u16, code: &str) -> (u16, String) {
    (status, code.to_owned())
}

#[tokio::test]
async fn a_right_signature_opens_and_wrong_ones_are_told_apart() {
    let server = locked().start().await.unwrap();
    let client = signed(&server, "AK", "SK", None);
    assert_eq!(get(&client, "data", "k").await, b"body");
    assert_eq!(get(&client, "data", "sp ace/ü+%\u{1}").await, b"awkward");
    let listing = client.list_objects_v2().bucket("data").prefix("sp ace/ü").encoding_type(EncodingType::Url);
    assert_eq!(listing.send().await.unwrap().contents().len(), 1);
    assert_eq!(read(&signed(&server, "XX", "SK", None)).await, is(403, "InvalidAccessKeyId"));
    assert_eq!(read(&signed(&server, "AK", "XX", None)).await, is(403, "SignatureDoesNotMatch"));
    assert_eq!(read(&signed(&server, "AK", "SK", Some("token"))).await, is(400, "InvalidToken"));
    assert_eq!(read(&anonymous(&server)).await, is(403, "AccessDenied"));
}

#[tokio::test]
async fn a_signed_body_can_be_put() {
    let server = locked().start().await.unwrap();
    let client = signed(&server, "AK", "SK", None);
    client.put_object().bucket("data").key("new").body(vec![7; 100_000].into()).send().await.unwrap();
    assert_eq!(get(&client, "data", "new").await, vec![7; 100_000]);
}

#[tokio::test]
async fn a_server_open_to_anyone_takes_any_signature_and_none() {
    let server = S3Server::builder().bucket("data", objects()).start().await.unwrap();
    assert_eq!(read(&anonymous(&server)).await.0, 200);
    assert_eq!(read(&signed(&server, "any", "thing", Some("at all"))).await.0, 200);
}

#[tokio::test]
async fn anonymous_requests_may_be_let_in_beside_signed_ones() {
    let access = Access::Signed { credentials: vec![Credentials::new("AK", "SK")], anonymous: true };
    let server = S3Server::builder().bucket("data", objects()).access(access).start().await.unwrap();
    assert_eq!(read(&anonymous(&server)).await.0, 200);
    assert_eq!(read(&signed(&server, "AK", "XX", None)).await.0, 403);
}

#[tokio::test]
async fn credentials_are_added_expired_and_removed_while_the_server_runs() {
    let server = locked().start().await.unwrap();
    server.add_credentials(Credentials::new("TEMP", "SK").with_session_token("token"));
    let client = signed(&server, "TEMP", "SK", Some("token"));
    assert_eq!(read(&client).await.0, 200);
    assert_eq!(read(&signed(&server, "TEMP", "SK", None)).await, is(400, "InvalidToken"));
    assert!(server.expire_credentials("TEMP"));
    assert_eq!(read(&client).await, is(400, "ExpiredToken"));
    assert!(server.remove_credentials("TEMP") && !server.remove_credentials("TEMP"));
    assert_eq!(read(&client).await, is(403, "InvalidAccessKeyId"));
}

#[tokio::test]
async fn a_clock_that_is_wrong_refuses_signed_requests() {
    let server = locked().clock_offset_seconds(3600).start().await.unwrap();
    assert_eq!(read(&signed(&server, "AK", "SK", None)).await, is(403, "RequestTimeTooSkewed"));
    let server = locked().clock_offset_seconds(-600).start().await.unwrap();
    assert_eq!(read(&signed(&server, "AK", "SK", None)).await.0, 200);
}

#[tokio::test]
async fn the_sdk_corrects_its_clock_by_the_date_of_the_refusal() {
    let server = locked().clock_offset_seconds(3600).start().await.unwrap();
    let answer = raw(&server, "GET /data/k HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    let dates: Vec<_> = answer.lines().filter_map(|line| line.strip_prefix("date: ")).collect();
    let [date] = dates.as_slice() else { panic!("{answer}") };
    let ahead = jiff::fmt::rfc2822::parse(date).unwrap().timestamp().duration_since(jiff::Timestamp::now());
    assert!((3590..=3600).contains(&ahead.as_secs()), "{date}");
    let credentials = aws_sdk_s3::config::Credentials::new("AK", "SK", None, None, "test");
    let retry = RetryConfig::standard().with_initial_backoff(Duration::from_millis(1));
    let settings = settings(&server.endpoint()).credentials_provider(credentials).retry_config(retry);
    assert_eq!(get(&Client::from_conf(settings.build()), "data", "k").await, b"body");
    assert_eq!(server.counters().errors["RequestTimeTooSkewed"], 1);
}

#[tokio::test]
async fn a_web_identity_token_buys_credentials_that_open() {
    let sts = StsConfig {
        tokens: vec!["jwt".to_owned()],
        lifetime: Duration::from_secs(900),
        ..StsConfig::default()
    };
    let server = locked().sts(sts).start().await.unwrap();
    let form = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Arole&RoleSessionName=s&WebIdentityToken=";
    let (status, body) = http(&server.endpoint(), "POST", "/", &format!("{form}jwt")).await;
    assert_eq!(status, 200, "{body}");
    let field = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>")).unwrap();
        rest.split_once('<').unwrap().0.to_owned()
    };
    let (access, secret, token) = (field("AccessKeyId"), field("SecretAccessKey"), field("SessionToken"));
    assert_eq!(read(&signed(&server, &access, &secret, Some(&token))).await.0, 200);
    assert_eq!(read(&signed(&server, &access, &secret, Some("other"))).await, is(400, "InvalidToken"));
    let (status, body) = http(&server.endpoint(), "POST", "/", &format!("{form}forged")).await;
    assert!(status == 400 && body.contains("InvalidIdentityToken"), "{body}");
    let counters = server.counters();
    assert_eq!(counters.requests_of(Operation::AssumeRoleWithWebIdentity), 2);
    assert_eq!(counters.errors["InvalidIdentityToken"], 1);
}

#[tokio::test]
async fn a_request_signed_for_another_region_is_redirected() {
    for (redirect, expected) in [
        (Redirect::Permanent, is(301, "PermanentRedirect")),
        (Redirect::Malformed, is(400, "AuthorizationHeaderMalformed")),
    ] {
        let bucket = BucketConfig::new("data", objects()).in_region("eu-west-1");
        let access = Access::signed(Credentials::new("AK", "SK"));
        let server = S3Server::builder()
            .bucket_config(bucket)
            .access(access)
            .redirect(redirect)
            .start()
            .await
            .unwrap();
        let client = signed(&server, "AK", "SK", None);
        let err = client.get_object().bucket("data").key("k").send().await.unwrap_err();
        let region = err.raw_response().unwrap().headers().get("x-amz-bucket-region");
        assert_eq!(region, Some("eu-west-1"));
        assert_eq!(refusal::<(), _>(Err(err)), expected);
        let here = aws_sdk_s3::config::Credentials::new("AK", "SK", None, None, "test");
        let settings =
            settings(&server.endpoint()).region(Region::new("eu-west-1")).credentials_provider(here);
        let client = Client::from_conf(settings.build());
        assert_eq!(get(&client, "data", "k").await, b"body");
        let head = client.head_bucket().bucket("data").send().await.unwrap();
        assert_eq!(head.bucket_region(), Some("eu-west-1"));
    }
}

/// Resolves every name to the loopback address.
#[derive(Debug, Clone)]
struct Loopback;

impl ResolveDns for Loopback {
    fn resolve_dns<'a>(&'a self, _name: &'a str) -> DnsFuture<'a> {
        DnsFuture::ready(Ok(vec![Ipv4Addr::LOCALHOST.into()]))
    }
}

#[tokio::test]
async fn a_signed_request_may_name_its_bucket_by_host() {
    let server = locked().tls().start().await.unwrap();
    let trust = TrustStore::empty().with_pem_certificate(server.ca_pem().unwrap());
    let context = TlsContext::builder().with_trust_store(trust).build().unwrap();
    let connector = aws_smithy_http_client::Builder::new()
        .tls_provider(Provider::Rustls(CryptoMode::Ring))
        .tls_context(context)
        .build_with_resolver(Loopback);
    let credentials = aws_sdk_s3::config::Credentials::new("AK", "SK", None, None, "test");
    let settings = settings(&format!("https://localhost:{}", server.address().port()));
    let settings = settings.force_path_style(false).credentials_provider(credentials).http_client(connector);
    let client = Client::from_conf(settings.build());
    assert_eq!(get(&client, "data", "k").await, b"body");
    assert_eq!(get(&client, "data", "sp ace/ü+%\u{1}").await, b"awkward");
    assert_eq!(client.list_objects_v2().bucket("data").max_keys(1).send().await.unwrap().contents().len(), 1);
    assert_eq!(server.counters().get_bytes["data/k"], 4);
}

#[tokio::test]
async fn tls_is_trusted_through_the_servers_authority_only() {
    let server = locked().tls().start().await.unwrap();
    let client = |trust: TrustStore| {
        let context = TlsContext::builder().with_trust_store(trust).build().unwrap();
        let connector = aws_smithy_http_client::Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .tls_context(context);
        let credentials = aws_sdk_s3::config::Credentials::new("AK", "SK", None, None, "test");
        let settings = settings(&server.endpoint())
            .credentials_provider(credentials)
            .http_client(connector.build_https());
        Client::from_conf(settings.build())
    };
    assert!(server.endpoint().starts_with("https://"));
    let trusted = client(TrustStore::empty().with_pem_certificate(server.ca_pem().unwrap()));
    assert_eq!(get(&trusted, "data", "k").await, b"body");
    let other = S3Server::builder().tls().start().await.unwrap();
    let stranger = client(TrustStore::empty().with_pem_certificate(other.ca_pem().unwrap()));
    assert!(stranger.get_object().bucket("data").key("k").send().await.is_err());
}
