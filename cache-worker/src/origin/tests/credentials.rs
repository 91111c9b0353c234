//! Who we are to S3 can change while we run.

use std::path::Path;

use millrace_api::dataset::credentials as names;
use millrace_s3_server::auth::{Access, Credentials};
use millrace_s3_server::sts::StsConfig;

use super::super::config::WebIdentity;
use super::super::error::OriginErrorKind as Kind;
use super::*;

pub(super) fn put_keys(folder: &Path, id: &str, secret: &str) {
    std::fs::write(folder.join(names::ACCESS_KEY_ID), id).unwrap();
    std::fs::write(folder.join(names::SECRET_ACCESS_KEY), secret).unwrap();
}

async fn signed() -> (S3Server, InMemory, OriginConfig, tempfile::TempDir) {
    let (server, objects) = server();
    let access = Access::signed(Credentials::new("AKIDOLD1", "old"));
    let server = server.access(access).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mut config = config_of(&server);
    config.credentials = CredentialsConfig::Folder(folder.path().to_owned());
    (server, objects, config, folder)
}

#[tokio::test]
async fn wrong_credentials_are_told_apart() {
    let (_server, objects, config, folder) = signed().await;
    let err = read_big(&open(config.clone()), &objects, 0..9).await.unwrap_err();
    assert_eq!(err.kind(), Kind::Credentials, "{err}");
    assert!(err.to_string().contains(names::ACCESS_KEY_ID), "{err}");
    put_keys(folder.path(), "AKIDWRONG9", "old");
    let err = read_big(&open(config.clone()), &objects, 0..9).await.unwrap_err();
    assert_eq!(err.kind(), Kind::InvalidAccessKey, "{err}");
    assert!(err.to_string().contains("...ONG9") && !err.to_string().contains("AKIDWRONG9"), "{err}");
    put_keys(folder.path(), "AKIDOLD1", "wrong");
    assert_eq!(kind_of_read(&open(config.clone()), &objects).await, Kind::SignatureMismatch);
    let anonymous = OriginConfig { credentials: CredentialsConfig::Anonymous, ..config.clone() };
    assert_eq!(kind_of_read(&open(anonymous), &objects).await, Kind::AccessDenied);
    put_keys(folder.path(), "AKIDOLD1", "old");
    read_big(&open(config), &objects, 0..SIZE).await.unwrap();
}

#[tokio::test]
async fn changed_credentials_are_taken_up_by_the_request_that_was_refused() {
    let (server, objects, config, folder) = signed().await;
    put_keys(folder.path(), "AKIDOLD1", "old");
    let origin = open(config);
    read_big(&origin, &objects, 0..9).await.unwrap();
    server.remove_credentials("AKIDOLD1");
    server.add_credentials(Credentials::new("AKIDNEW2", "new").with_session_token("token"));
    assert_eq!(kind_of_read(&origin, &objects).await, Kind::InvalidAccessKey);
    put_keys(folder.path(), "AKIDNEW2", "new");
    std::fs::write(folder.path().join(names::SESSION_TOKEN), "token").unwrap();
    // Each of many requests that were sent with the old key finds the new one, not only the first.
    let all = futures::future::join_all((0..8).map(|_| read_big(&origin, &objects, 0..9))).await;
    assert!(all.iter().all(Result::is_ok), "{all:?}");
    server.expire_credentials("AKIDNEW2");
    assert_eq!(kind_of_read(&origin, &objects).await, Kind::ExpiredToken);
}

#[tokio::test]
async fn the_folders_own_authority_is_trusted_and_may_come_later() {
    let (server, objects) = server();
    let server = server.tls().start().await.unwrap();
    let other = S3Server::builder().tls().start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    put_keys(folder.path(), "AKIDANY", "any");
    let ca = folder.path().join(names::CA);
    std::fs::write(&ca, other.ca_pem().unwrap()).unwrap();
    let mut config = config_of(&server);
    config.credentials = CredentialsConfig::Folder(folder.path().to_owned());
    let origin = open(config);
    assert_eq!(kind_of_read(&origin, &objects).await, Kind::Tls);
    std::fs::write(&ca, server.ca_pem().unwrap()).unwrap();
    let taken_up_by = within(10);
    while let Err(err) = read_big(&origin, &objects, 0..9).await {
        assert_eq!(err.kind(), Kind::Tls);
        assert!(Instant::now() < taken_up_by);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test]
async fn a_web_identity_buys_credentials_from_a_folder_or_by_itself() {
    let (server, objects) = server();
    let sts = StsConfig { tokens: vec!["t0ken".to_owned()], ..StsConfig::default() };
    let access = Access::Signed { credentials: Vec::new(), anonymous: false };
    let server = server.access(access).sts(sts).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let token_file = folder.path().join("token");
    std::fs::write(&token_file, "wrong").unwrap();
    let mut config = config_of(&server);
    config.credentials = CredentialsConfig::WebIdentity(WebIdentity {
        role_arn: "arn:aws:iam::123456789012:role/reader".to_owned(),
        token_file: token_file.clone(),
        session_name: None,
        sts_endpoint: Some(server.endpoint()),
    });
    let origin = open(config.clone());
    let err = read_big(&origin, &objects, 0..9).await.unwrap_err();
    assert_eq!(err.kind(), Kind::Credentials, "{err}");
    std::fs::write(&token_file, "t0ken").unwrap();
    read_big(&origin, &objects, 0..SIZE).await.unwrap();
    read_big(&origin, &objects, 0..9).await.unwrap();
    for (name, text) in [
        (names::ROLE_ARN, "arn:aws:iam::123456789012:role/reader"),
        (names::WEB_IDENTITY_TOKEN_FILE, token_file.to_str().unwrap()),
        (names::STS_ENDPOINT, server.endpoint().as_str()),
    ] {
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    config.credentials = CredentialsConfig::Folder(folder.path().to_owned());
    read_big(&open(config), &objects, 0..SIZE).await.unwrap();
    let asked =
        server.counters().requests_of(millrace_s3_server::target::Operation::AssumeRoleWithWebIdentity);
    assert_eq!(asked, 3, "one that was refused, then one for each origin");
}

#[tokio::test]
async fn a_token_service_that_is_away_is_waited_for() {
    use millrace_s3_server::outage::OutageMode;
    let (server, objects) = server();
    let server = server.sts(StsConfig::default()).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("token"), "any").unwrap();
    let mut config = config_of(&server);
    config.credentials = CredentialsConfig::WebIdentity(WebIdentity {
        role_arn: "arn:aws:iam::123456789012:role/reader".to_owned(),
        token_file: folder.path().join("token"),
        session_name: None,
        sts_endpoint: Some(server.endpoint()),
    });
    server.begin_outage(OutageMode::Refuse, Duration::from_secs(1));
    read_big(&open(config), &objects, 0..9).await.unwrap();
}

#[tokio::test]
async fn a_clock_that_differs_is_learned_from_the_answer() {
    let (server, objects) = server();
    let access = Access::signed(Credentials::new("AKIDOLD1", "old"));
    let server = server.access(access).clock_offset_seconds(3600).start().await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    put_keys(folder.path(), "AKIDOLD1", "old");
    let mut config = config_of(&server);
    config.credentials = CredentialsConfig::Folder(folder.path().to_owned());
    let origin = open(config);
    read_big(&origin, &objects, 0..9).await.unwrap();
    read_big(&origin, &objects, 0..9).await.unwrap();
    assert_eq!(origin.counters().now().of(Kind::ClockSkew), 1);
}

#[tokio::test]
async fn a_clock_that_cannot_be_learned_is_an_error() {
    use millrace_s3_server::faults::{plan::FaultPlan, rule::Fault};
    let (server, objects) = server();
    let fault = Fault::Error { status: 403, code: "RequestTimeTooSkewed".to_owned(), message: String::new() };
    let server = server.faults(FaultPlan::default().rule(fault)).start().await.unwrap();
    let err = read_big(&open(config_of(&server)), &objects, 0..9).await.unwrap_err();
    assert_eq!(err.kind(), Kind::ClockSkew);
    assert!(err.to_string().contains("NTP"), "{err}");
}

/// Environment variable that tells the child where the server is.
const ENDPOINT: &str = "MILLRACE_TEST_ENDPOINT";

/// Runs an ignored test of this binary with another environment, which a process may not change for itself.
async fn in_child(test: &str, endpoint: &str, variables: &[(&str, &str)]) {
    let name = format!("{}::{test}", module_path!().split_once("::").unwrap().1);
    let output = tokio::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .envs(variables.iter().copied())
        .env(ENDPOINT, endpoint)
        .output()
        .await
        .unwrap();
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

async fn read_in_child(credentials: CredentialsConfig) {
    let config = OriginConfig::at(std::env::var(ENDPOINT).unwrap(), "data", credentials);
    let objects = InMemory::new().with("small", "hello");
    assert_eq!(read(&open(config), version(&objects, "small", 5), 0..5).await.unwrap(), b"hello");
}

#[tokio::test]
#[ignore = "run by a_named_profile_is_found_in_the_configuration_files"]
async fn child_with_a_profile() {
    read_in_child(CredentialsConfig::Profile("reader".to_owned())).await;
}

#[tokio::test]
async fn a_named_profile_is_found_in_the_configuration_files() {
    let (server, _objects, _config, folder) = signed().await;
    let file = folder.path().join("config");
    let text = "[default]\naws_access_key_id = other\naws_secret_access_key = other\n\
                [profile reader]\naws_access_key_id = AKIDOLD1\naws_secret_access_key = old\n";
    std::fs::write(&file, text).unwrap();
    let variables =
        [("AWS_CONFIG_FILE", file.to_str().unwrap()), ("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")];
    in_child("child_with_a_profile", &server.endpoint(), &variables).await;
}

#[tokio::test]
#[ignore = "run by the_chain_finds_keys_in_the_environment"]
async fn child_with_the_chain() {
    read_in_child(CredentialsConfig::Chain).await;
}

#[tokio::test]
async fn the_chain_finds_keys_in_the_environment() {
    let (server, _objects, _config, _folder) = signed().await;
    let variables = [("AWS_ACCESS_KEY_ID", "AKIDOLD1"), ("AWS_SECRET_ACCESS_KEY", "old")];
    in_child("child_with_the_chain", &server.endpoint(), &variables).await;
}
