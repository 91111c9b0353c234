//! Do the messages keep their bytes, and does decoding survive any bytes?

use millrace_control::proto::*;
use proptest::prelude::*;
use prost::Message;

fn request() -> MakeIndexRequest {
    let source = Source {
        path: "/train".into(),
        endpoint: "http://h:1".into(),
        bucket: "b".into(),
        prefix: "t/".into(),
        region: "r".into(),
        addressing: Addressing::Path.into(),
        requester_pays: true,
        include: vec!["**/*.jpg".into()],
        exclude: vec!["x".into()],
        credentials: "0".into(),
        anonymous: false,
        profile: String::new(),
    };
    MakeIndexRequest { sources: vec![source], block_size_bytes: 8 << 20 }
}

fn status() -> WorkerStatus {
    let failure =
        ObjectFailure { path: "a/b".into(), reason: "Archived".into(), message: "m".into(), at_ms: 9 };
    let warm_up = WarmUp {
        state: WarmUpState::Running.into(),
        listed: 4,
        done: 1,
        failed: 1,
        pending: 2,
        bytes_done: 10,
        bytes_total: 40,
        failures: vec![failure.clone()],
    };
    let cached = Cached { bytes: 1, objects: 2, blocks: 3 };
    let version = VersionStatus {
        version: "00ff".into(),
        index_ready: true,
        cached: Some(cached),
        owned: Some(cached),
        warm_up: Some(warm_up),
        failed: None,
    };
    let reason = ReasonCount { reason: "full".into(), count: 3 };
    WorkerStatus {
        worker: "w".into(),
        start_id: "s".into(),
        boot_id: "b".into(),
        epoch: 7,
        versions: vec![version],
        store: Some(StoreUsage { bytes: 5, quota_bytes: 6, not_kept: vec![reason], ..StoreUsage::default() }),
        origin: Some(OriginCounters { requests: 1, bytes: 2, retries: 3, throttles: 4, errors: 5 }),
        degraded: Some(Degraded { objects: 1, last: vec![failure] }),
        connections: 2,
        sessions: vec![session()],
        origin_trouble: Some(OriginTrouble {
            reason: "Unreachable".into(),
            message: "m".into(),
            source: "/train".into(),
            since_ms: 9,
        }),
        session_count: 3,
    }
}

fn session() -> Session {
    let pod = Pod { namespace: "n".into(), name: "p".into(), uid: "u".into() };
    Session { node: "node-7".into(), version: "00ff".into(), pods: vec![pod], pod_count: 2, since_ms: 9 }
}

fn use_versions() -> UseVersionsRequest {
    let mount = MountSettings {
        version: "00ff".into(),
        node_cache_quota_bytes: 300,
        uid: 1000,
        gid: 100,
        file_mode: 0o444,
        dir_mode: 0o555,
        mode: 2,
    };
    UseVersionsRequest { versions: vec!["00ff".into()], sources: Vec::new(), mount: Some(mount) }
}

fn membership() -> Membership {
    let worker = Worker { name: "w-0".into(), address: "10.0.0.1:7420".into(), weight: 3 };
    Membership { epoch: 258, workers: vec![worker] }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn golden_membership() {
    let bytes = membership().encode_to_vec();
    assert_eq!(hex(&bytes), "08820212160a03772d30120d31302e302e302e313a373432301803");
    assert_eq!(Membership::decode(&bytes[..]).unwrap(), membership());
}

#[test]
fn golden_make_index() {
    let bytes = request().encode_to_vec();
    assert_eq!(
        hex(&bytes),
        "0a320a062f747261696e120a687474703a2f2f683a311a016222\
         02742f2a01723001380142082a2a2f2a2e6a70674a01785201301080808004"
    );
}

#[test]
fn golden_mount_settings_and_sessions() {
    assert_eq!(
        hex(&use_versions().encode_to_vec()),
        "0a04303066661a160a043030666610ac0218e807206428a40230ed023802"
    );
    // Auto is what nothing means: the bytes of peers that know no mode.
    let mut of_before = use_versions();
    of_before.mount.as_mut().unwrap().mode = 0;
    assert_eq!(hex(&of_before.encode_to_vec()), "0a04303066661a140a043030666610ac0218e807206428a40230ed02");
    assert_eq!(hex(&session().encode_to_vec()), "0a066e6f64652d371204303066661a090a016e1201701a017520022809");
    assert_eq!(
        hex(&status().origin_trouble.unwrap().encode_to_vec()),
        "0a0b556e726561636861626c6512016d1a062f747261696e2009"
    );
}

#[test]
fn a_reader_ignores_fields_it_does_not_know() {
    let mut bytes = membership().encode_to_vec();
    // Field 1000, a varint.
    bytes.extend_from_slice(&[0xc0, 0x3e, 0x01]);
    assert_eq!(Membership::decode(&bytes[..]).unwrap(), membership());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_messages_never_panic(at in any::<prop::sample::Index>(), value: u8, cut in any::<prop::sample::Index>(), cuts: bool) {
        for mut bytes in [
            request().encode_to_vec(),
            status().encode_to_vec(),
            membership().encode_to_vec(),
            use_versions().encode_to_vec(),
        ] {
            let place = at.index(bytes.len());
            bytes[place] = value;
            if cuts {
                bytes.truncate(cut.index(bytes.len()));
            }
            // What decodes is no larger than a small multiple of its bytes: texts and lists hold what was there.
            if let Ok(message) = WorkerStatus::decode(&bytes[..]) {
                prop_assert!(message.encoded_len() <= 4 * bytes.len() + 16);
            }
            if let Ok(message) = MakeIndexRequest::decode(&bytes[..]) {
                prop_assert!(message.sources.len() <= bytes.len());
            }
            if let Ok(message) = UseVersionsRequest::decode(&bytes[..])
                && let Some(mount) = message.mount
            {
                let _ = mount.parse(None);
            }
            if let Ok(message) = Membership::decode(&bytes[..]) {
                let _ = millrace_api::placement::Membership::try_from(message);
            }
        }
    }
}
