//! How does a membership go over the control port?

use std::collections::HashSet;

use millrace_api::placement::{MAX_WORKER_NAME_BYTES, MAX_WORKERS, Membership, Worker};
use millrace_api::wire::MAX_ADDRESS_BYTES;

use crate::proto;

/// Says why a message is not a membership.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseMembership {
    /// More workers than there can be.
    #[error("the membership has {count} workers, at most {MAX_WORKERS} are possible")]
    TooMany {
        /// How many it has.
        count: usize,
    },
    /// A name that no worker can have.
    #[error("worker name {name:?} is empty, longer than {MAX_WORKER_NAME_BYTES} bytes, or there twice")]
    Name {
        /// The name.
        name: String,
    },
    /// An address that cannot be one.
    #[error(
        "worker {name:?} has the address {address:?}, expected host:port of at most {MAX_ADDRESS_BYTES} bytes"
    )]
    Address {
        /// Whose.
        name: String,
        /// The address.
        address: String,
    },
}

impl From<&Membership> for proto::Membership {
    fn from(membership: &Membership) -> Self {
        let worker = |worker: &Worker| proto::Worker {
            name: worker.name.clone(),
            address: worker.address.clone(),
            weight: worker.weight,
        };
        Self { epoch: membership.epoch, workers: membership.workers.iter().map(worker).collect() }
    }
}

impl TryFrom<proto::Membership> for Membership {
    type Error = ParseMembership;

    fn try_from(message: proto::Membership) -> Result<Self, ParseMembership> {
        let proto::Membership { epoch, workers } = message;
        if workers.len() > MAX_WORKERS {
            return Err(ParseMembership::TooMany { count: workers.len() });
        }
        let mut names = HashSet::new();
        let mut parsed = Vec::with_capacity(workers.len());
        for proto::Worker { name, address, weight } in workers {
            if name.is_empty() || name.len() > MAX_WORKER_NAME_BYTES || !names.insert(name.clone()) {
                return Err(ParseMembership::Name { name });
            }
            let has_port = address.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0)
            });
            if !has_port || address.len() > MAX_ADDRESS_BYTES {
                return Err(ParseMembership::Address { name, address });
            }
            parsed.push(Worker { name, address, weight });
        }
        Ok(Membership { epoch, workers: parsed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(workers: &[(&str, &str)]) -> proto::Membership {
        let worker = |(name, address): &(&str, &str)| proto::Worker {
            name: (*name).to_owned(),
            address: (*address).to_owned(),
            weight: 2,
        };
        proto::Membership { epoch: 3, workers: workers.iter().map(worker).collect() }
    }

    #[test]
    fn a_membership_reads_back() {
        let sent = message(&[("w-0", "10.0.0.1:7420"), ("w-1", "[::1]:7420")]);
        let membership = Membership::try_from(sent.clone()).unwrap();
        assert_eq!(membership.epoch, 3);
        assert_eq!(proto::Membership::from(&membership), sent);
    }

    #[test]
    fn what_is_no_membership_is_refused_by_name() {
        let many: Vec<_> = (0..257).map(|i| format!("w-{i}")).collect();
        let many: Vec<_> = many.iter().map(|name| (name.as_str(), "h:1")).collect();
        assert_eq!(Membership::try_from(message(&many)), Err(ParseMembership::TooMany { count: 257 }));
        let long = "n".repeat(64);
        for (workers, name) in [
            (vec![("", "h:1")], ""),
            (vec![(&*long, "h:1")], &*long),
            (vec![("a", "h:1"), ("a", "h:2")], "a"),
        ] {
            let refused = ParseMembership::Name { name: name.to_owned() };
            assert_eq!(Membership::try_from(message(&workers)), Err(refused));
        }
        let far = format!("{}:1", "h".repeat(300));
        for address in ["", "h", "h:", ":1", "h:0", "h:70000", &far] {
            let error = Membership::try_from(message(&[("a", address)])).unwrap_err();
            assert!(matches!(error, ParseMembership::Address { .. }), "{address:?}: {error}");
        }
    }
}
