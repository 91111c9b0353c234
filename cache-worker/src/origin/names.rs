//! Which addresses does a host name have?

use std::net::{IpAddr, Ipv4Addr};

use aws_smithy_runtime_api::client::dns::{DnsFuture, ResolveDns, ResolveDnsError};

/// The system's resolver, but for `localhost` and the names below it, which are this machine by
/// [RFC 6761](https://www.rfc-editor.org/rfc/rfc6761#section-6.3): glibc leaves them to a plug-in that a static binary does
/// not have, and a bucket's name in front of the host's is such a name.
#[derive(Debug, Clone)]
pub(super) struct Names;

impl ResolveDns for Names {
    fn resolve_dns<'a>(&'a self, name: &'a str) -> DnsFuture<'a> {
        if is_this_machine(name) {
            return DnsFuture::ready(Ok(vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]));
        }
        DnsFuture::new(async move {
            let found = tokio::net::lookup_host((name, 0)).await.map_err(ResolveDnsError::new)?;
            Ok(found.map(|address| address.ip()).collect())
        })
    }
}

fn is_this_machine(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name.strip_suffix("localhost").is_some_and(|below| below.ends_with('.') && below.len() > 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_below_localhost_are_this_machine() {
        assert!(is_this_machine("data.localhost") && is_this_machine("Data.LOCALHOST."));
        // `localhost` itself is in /etc/hosts, which may know better.
        for other in ["localhost", ".localhost", "notlocalhost", "localhost.example.com"] {
            assert!(!is_this_machine(other), "{other}");
        }
    }
}
