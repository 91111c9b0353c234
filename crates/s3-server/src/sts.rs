//! Which temporary credentials does a web identity token buy?
//!
//! AssumeRoleWithWebIdentity as the SDKs send it: a form in a POST to the root
//! (<https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html>).

use std::time::{Duration, SystemTime};

use rand::RngExt;
use rand::distr::Alphanumeric;

use crate::auth::Credentials;
use crate::target::form_decode;

/// What the STS side of the server accepts and hands out.
#[derive(Debug, Clone)]
pub struct StsConfig {
    /// Tokens that are accepted; any token that is not empty when there are none.
    pub tokens: Vec<String>,
    /// The role that may be assumed; any when absent.
    pub role_arn: Option<String>,
    /// How long the credentials are valid.
    pub lifetime: Duration,
}

impl Default for StsConfig {
    fn default() -> Self {
        // AWS's default of DurationSeconds.
        Self { tokens: Vec::new(), role_arn: None, lifetime: Duration::from_secs(3600) }
    }
}

/// The answer to a form: status, XML, and the credentials that are accepted from now on.
pub(crate) struct Assumed {
    pub status: u16,
    pub xml: String,
    pub credentials: Option<Credentials>,
}

/// Answers a form.
pub(crate) fn assume(config: &StsConfig, form: &str, now: SystemTime) -> Assumed {
    let field = |wanted: &str| {
        form.split('&')
            .find_map(|part| part.split_once('=').filter(|(name, _)| *name == wanted))
            .map(|(_, value)| form_decode(value))
    };
    let action = field("Action").unwrap_or_default();
    let token = field("WebIdentityToken").unwrap_or_default();
    let role = field("RoleArn").unwrap_or_default();
    let session = field("RoleSessionName").unwrap_or_default();
    if action != "AssumeRoleWithWebIdentity" {
        return refuse(400, "InvalidAction", "only AssumeRoleWithWebIdentity is served here");
    }
    if token.is_empty() || !config.tokens.is_empty() && !config.tokens.contains(&token) {
        return refuse(
            400,
            "InvalidIdentityToken",
            "the web identity token is not one that is accepted here",
        );
    }
    if config.role_arn.as_ref().is_some_and(|wanted| *wanted != role) {
        return refuse(403, "AccessDenied", "Not authorized to perform sts:AssumeRoleWithWebIdentity");
    }
    let expires = now + config.lifetime;
    let credentials = Credentials {
        access_key: format!("ASIA{}", random_text(16).to_ascii_uppercase()),
        secret_key: random_text(40),
        session_token: Some(random_text(120)),
        expires: Some(expires),
    };
    Assumed {
        status: 200,
        xml: answer(&credentials, expires, &role, &session),
        credentials: Some(credentials),
    }
}

fn answer(credentials: &Credentials, expires: SystemTime, role: &str, session: &str) -> String {
    let expiration = jiff::Timestamp::try_from(expires)
        .map(|at| at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        .unwrap_or_default();
    let (access, secret) = (&credentials.access_key, &credentials.secret_key);
    let token = credentials.session_token.as_deref().unwrap_or_default();
    let arn = escape(&format!("{role}/{session}"));
    format!(
        r#"<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey><SessionToken>{token}</SessionToken><Expiration>{expiration}</Expiration></Credentials><AssumedRoleUser><Arn>{arn}</Arn><AssumedRoleId>AROAMILLRACE:{}</AssumedRoleId></AssumedRoleUser></AssumeRoleWithWebIdentityResult><ResponseMetadata><RequestId>0</RequestId></ResponseMetadata></AssumeRoleWithWebIdentityResponse>"#,
        escape(session)
    )
}

fn refuse(status: u16, code: &str, message: &str) -> Assumed {
    let xml = format!(
        r#"<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error><Type>Sender</Type><Code>{code}</Code><Message>{}</Message></Error><RequestId>0</RequestId></ErrorResponse>"#,
        escape(message)
    );
    Assumed { status, xml, credentials: None }
}

/// Text as it may stand between two tags.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn random_text(length: usize) -> String {
    rand::rng().sample_iter(Alphanumeric).take(length).map(char::from).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn form(token: &str) -> String {
        format!(
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&RoleSessionName=s&WebIdentityToken={token}"
        )
    }

    #[test]
    fn an_accepted_token_buys_credentials_that_expire() {
        let config = StsConfig { tokens: vec!["good+1".to_owned()], ..StsConfig::default() };
        let assumed = assume(&config, &form("good%2B1"), SystemTime::UNIX_EPOCH);
        let credentials = assumed.credentials.unwrap();
        assert_eq!(assumed.status, 200);
        assert_eq!(credentials.expires, Some(SystemTime::UNIX_EPOCH + config.lifetime));
        assert!(assumed.xml.contains("<Expiration>1970-01-01T01:00:00Z</Expiration>"), "{}", assumed.xml);
        assert!(assumed.xml.contains(&credentials.session_token.unwrap()));
    }

    #[test]
    fn another_token_role_or_action_is_refused() {
        let config = StsConfig {
            tokens: vec!["good".to_owned()],
            role_arn: Some("arn:aws:iam::1:role/r".to_owned()),
            ..StsConfig::default()
        };
        let refuses = |form: &str, code: &str| {
            assume(&config, form, SystemTime::UNIX_EPOCH).xml.contains(&format!("<Code>{code}</Code>"))
        };
        assert_eq!(assume(&config, &form("good"), SystemTime::UNIX_EPOCH).status, 200);
        assert!(refuses(&form("bad"), "InvalidIdentityToken"));
        assert!(refuses(&form("good").replace("role%2Fr", "role%2Fx"), "AccessDenied"));
        assert!(refuses("Action=GetCallerIdentity", "InvalidAction"));
        assert!(refuses("", "InvalidAction"));
    }
}
