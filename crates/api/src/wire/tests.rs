//! Do the frames keep their bytes, and do decoders survive any bytes?

mod golden;

use proptest::prelude::*;

use super::*;
use crate::crc::crc32c;
use crate::ids::{ContentId, VersionId};
use crate::keys::KEY_BYTES;
use crate::mount::{Announce, MAX_LISTED_PODS, MountMode, MountSettings, Pod};
use crate::placement::{Membership, Worker};

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A frame as bytes.
fn frame(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

fn server_hello() -> ServerHello {
    ServerHello { oldest: 1, newest: 2, features: 4, nonce: [0xAA; KEY_BYTES] }
}

fn client_hello() -> ClientHello {
    let (nonce, proof) = ([0xBB; KEY_BYTES], [0xCC; KEY_BYTES]);
    ClientHello { version: 1, features: 4, nonce, proof, name: "node-7".into(), epoch: 258 }
}

fn read() -> Request {
    let item = BatchItem { file: 7, content: ContentId([0xC0; 16]), chunks: 2..5 };
    Request::Read(Read {
        version: VersionId([0xD5; 16]),
        item,
        epoch: 3,
        deadline_ms: 120_000,
        flags: flags::PREFETCH,
    })
}

fn batch() -> Request {
    let item = |file| BatchItem { file, content: ContentId([0xC0; 16]), chunks: 0..1 };
    let version = VersionId([0xD5; 16]);
    Request::BatchRead(BatchRead {
        version,
        items: vec![item(7), item(8)],
        epoch: 3,
        deadline_ms: 1000,
        flags: 0,
    })
}

fn get_index() -> Request {
    Request::GetIndex(GetIndex { version: VersionId([0xD5; 16]), offset: 1 << 20, len: 1 << 20 })
}

fn membership() -> Answer {
    let worker = |name: &str, weight| Worker { name: name.into(), address: "10.0.0.1:7420".into(), weight };
    Answer::Membership(Membership { epoch: 9, workers: vec![worker("w-0", 1), worker("w-1", 200)] })
}

fn error() -> Answer {
    let message = "object \"a\" changed".into();
    Answer::Error(ErrorFrame { item: 3, code: ErrorCode::ObjectChanged, epoch: 9, message, is_last: true })
}

fn data() -> (DataHead, Vec<u32>) {
    let head = DataHead { item: 1, first_chunk: 2, count: 2, payload_len: 65_537, epoch: 9 };
    (head, vec![0x0102_0304, 0x0506_0708])
}

fn announce() -> Request {
    let pod = |name: &str| Pod { namespace: "vision".into(), name: name.into(), uid: "u-1".into() };
    let pods = vec![pod("a"), pod("b")];
    Request::Announce(Announce { node: "node-7".into(), version: VersionId([0xD5; 16]), pods, pod_count: 3 })
}

fn mount_settings() -> Answer {
    Answer::MountSettings(MountSettings {
        version: VersionId([0xD5; 16]),
        node_cache_quota_bytes: 50 << 30,
        uid: 1000,
        gid: 100,
        file_mode: 0o444,
        dir_mode: 0o555,
        mode: MountMode::Packed,
    })
}

fn all_requests() -> Vec<Request> {
    let (cancel, membership, ping) = (Request::Cancel, Request::GetMembership, Request::Ping);
    vec![read(), batch(), get_index(), cancel, membership, ping, Request::GetMountSettings, announce()]
}

fn all_answers() -> Vec<Answer> {
    vec![Answer::Pending { epoch: 9 }, Answer::Pong { epoch: 9 }, error(), membership(), mount_settings()]
}

/// Every kind of frame once, whole, with payloads left out.
fn all_frames() -> Vec<Vec<u8>> {
    let (head, crcs) = data();
    let part = IndexPartHead { total_len: 100, offset: 40, payload_len: 60 };
    let mut frames = vec![
        frame(|out| server_hello().encode(out)),
        frame(|out| client_hello().encode(out)),
        frame(|out| hello_ok("").encode(out)),
        frame(|out| hello_ok("6e9f").encode(out)),
        frame(|out| Refused { code: ErrorCode::WrongKey, message: "no".into() }.encode(out)),
        frame(|out| head.encode(5, true, &crcs, out)),
        frame(|out| part.encode(5, out)),
    ];
    frames.extend(all_requests().iter().map(|request| frame(|out| request.encode(5, out))));
    frames.extend(all_answers().iter().map(|answer| frame(|out| answer.encode(5, out))));
    frames
}

fn hello_ok(pod_uid: &str) -> HelloOk {
    HelloOk { features: 4, proof: [0xDD; KEY_BYTES], epoch: 9, pod_uid: pod_uid.to_owned() }
}

/// Gives what stands before the payload of a mutated frame a CRC that fits, so that its fields are looked at.
fn seal(bytes: &mut Vec<u8>) {
    bytes.truncate(bytes.len().saturating_sub(CRC_BYTES));
    if let Some(reserved) = bytes.get_mut(6..8) {
        reserved.fill(0);
    }
    let crc = crc32c(bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
}

/// Decodes a frame as whoever may receive it would; the error where it is not understood.
fn decode(bytes: &[u8]) -> Result<FrameHeader, DecodeFrame> {
    let header = FrameHeader::decode(bytes, MAX_BODY_BYTES)?;
    let body = &bytes[HEADER_BYTES.min(bytes.len())..];
    let body = &body[..body.len().min(header.body_len as usize)];
    match header.kind {
        kind::SERVER_HELLO => ServerHello::decode(&header, body).map(drop)?,
        kind::CLIENT_HELLO => ClientHello::decode(&header, body).map(drop)?,
        kind::HELLO_OK => HelloOk::decode(&header, body).map(drop)?,
        kind::REFUSED => Refused::decode(&header, body).map(drop)?,
        kind::DATA => {
            let len = DataHead::len_before_payload(body).unwrap_or(0).min(body.len());
            let head = DataHead::decode(&header, &body[..len])?;
            assert!((1..=MAX_FRAME_CHUNKS).contains(&head.count) && head.payload_len <= MAX_PAYLOAD_BYTES);
            assert_eq!(head.crcs(&body[..len]).count(), usize::from(head.count));
        }
        kind::INDEX_PART => {
            let head = IndexPartHead::decode(&header, body)?;
            assert!(head.payload_len <= MAX_PAYLOAD_BYTES);
        }
        0x10..=0x7F => match Request::decode(&header, body)? {
            Request::BatchRead(batch) => {
                assert!((1..=MAX_BATCH_ITEMS).contains(&batch.items.len()));
                let chunks: usize = batch.items.iter().map(|item| item.chunks.len()).sum();
                assert!(chunks <= MAX_READ_CHUNKS as usize);
            }
            Request::Read(read) => assert!((1..=MAX_READ_CHUNKS as usize).contains(&read.item.chunks.len())),
            Request::GetIndex(get) => assert!((1..=MAX_PAYLOAD_BYTES).contains(&get.len)),
            Request::Announce(announce) => {
                assert!(announce.pods.len() <= MAX_LISTED_PODS.min(announce.pod_count as usize));
            }
            Request::Cancel | Request::GetMembership | Request::Ping | Request::GetMountSettings => {}
        },
        _ => match Answer::decode(&header, body)? {
            Answer::Error(error) => assert!(error.message.len() <= MAX_MESSAGE_BYTES),
            Answer::MountSettings(settings) => {
                assert!((settings.file_mode | settings.dir_mode) & !0o777 == 0);
            }
            Answer::Pending { .. } | Answer::Membership(_) | Answer::Pong { .. } => {}
        },
    }
    Ok(header)
}

/// Header and what follows it of a whole frame.
fn parts(bytes: &[u8]) -> (FrameHeader, &[u8]) {
    (FrameHeader::decode(bytes, MAX_BODY_BYTES).unwrap(), &bytes[HEADER_BYTES..])
}

/// A frame in hexadecimal, without its CRC if that is right.
fn pinned(mut bytes: Vec<u8>) -> String {
    let crc = bytes.split_off(bytes.len() - CRC_BYTES);
    assert_eq!(crc, crc32c(&bytes).to_le_bytes());
    hex(&bytes)
}

#[test]
fn every_frame_reads_back() {
    for request in all_requests() {
        let bytes = frame(|out| request.encode(5, out));
        let (header, body) = parts(&bytes);
        assert_eq!((header.request, header.body_len as usize), (5, body.len()));
        assert_eq!(Request::decode(&header, body), Ok(request));
    }
    for answer in all_answers() {
        let bytes = frame(|out| answer.encode(5, out));
        let (header, body) = parts(&bytes);
        assert_eq!(Answer::decode(&header, body), Ok(answer));
    }
    let bytes = frame(|out| server_hello().encode(out));
    let (header, body) = parts(&bytes);
    assert_eq!(ServerHello::decode(&header, body), Ok(server_hello()));
    let bytes = frame(|out| client_hello().encode(out));
    let (header, body) = parts(&bytes);
    assert_eq!(ClientHello::decode(&header, body), Ok(client_hello()));
    let (head, crcs) = data();
    let bytes = frame(|out| head.encode(5, true, &crcs, out));
    let (header, body) = parts(&bytes);
    assert_eq!((header.flags, header.body_len as usize), (flags::LAST, body.len() + 65_537));
    assert_eq!(DataHead::decode(&header, body), Ok(head));
    assert_eq!(head.crcs(body).collect::<Vec<_>>(), crcs);
}

#[test]
fn the_largest_announcement_is_cut_to_what_a_server_takes() {
    let pod = |number: usize| Pod {
        namespace: "n".repeat(63),
        name: format!("{number:0253}"),
        uid: "u".repeat(64),
    };
    let pods = (0..MAX_LISTED_PODS + 10).map(pod).collect();
    let announce = Announce::new("node".into(), VersionId([1; 16]), pods);
    let bytes = frame(|out| Request::Announce(announce.clone()).encode(0, out));
    let header = FrameHeader::decode(&bytes, MAX_PLAIN_BODY_BYTES).unwrap();
    let Ok(Request::Announce(read)) = Request::decode(&header, &bytes[HEADER_BYTES..]) else { panic!() };
    assert_eq!(read, announce);
    assert_eq!((read.pods.len(), read.pod_count), (MAX_LISTED_PODS, MAX_LISTED_PODS as u32 + 10));
}

#[test]
fn codes_read_back_and_unknown_ones_are_kept() {
    for code in ErrorCode::ALL {
        assert_eq!(ErrorCode::from_wire(code.to_wire()), code);
        assert!(!code.to_string().is_empty());
        assert!(!code.is_passing() || code.is_retryable_elsewhere(), "{code}");
    }
    assert_eq!(ErrorCode::from_wire(999), ErrorCode::Unknown(999));
    assert_eq!(ErrorCode::Unknown(999).to_wire(), 999);
}

#[test]
fn a_newer_build_may_append_fields_and_send_unknown_tlvs() {
    let appended = |mut bytes: Vec<u8>, more: &[u8]| {
        bytes[0] += more.len() as u8;
        bytes.splice(bytes.len() - CRC_BYTES..bytes.len() - CRC_BYTES, more.iter().copied());
        seal(&mut bytes);
        bytes
    };
    let bytes = appended(frame(|out| client_hello().encode(out)), &[0x77, 0x77, 2, 0, 1, 2]);
    let (header, body) = parts(&bytes);
    assert_eq!(ClientHello::decode(&header, body), Ok(client_hello()));
    let bytes = appended(frame(|out| read().encode(5, out)), &[1, 2, 3]);
    let (header, body) = parts(&bytes);
    assert_eq!(Request::decode(&header, body), Ok(read()));
}

#[test]
fn the_newest_common_version_is_chosen() {
    assert_eq!(negotiate(1..=1, 1..=1), Some(1));
    assert_eq!(negotiate(2..=3, 3..=4), Some(3));
    assert_eq!(negotiate(3..=4, 2..=3), Some(3));
    assert_eq!(negotiate(1..=2, 3..=4), None);
    assert_eq!(negotiate(3..=4, 1..=2), None);
}

#[test]
fn long_messages_are_cut_at_a_character() {
    let message = "é".repeat(400);
    let long = ErrorFrame { item: 0, code: ErrorCode::Internal, epoch: 1, message, is_last: false };
    let bytes = frame(|out| Answer::Error(long).encode(5, out));
    let (header, body) = parts(&bytes);
    let Ok(Answer::Error(error)) = Answer::decode(&header, body) else { panic!() };
    assert_eq!(error.message.chars().count(), 256);
}

#[test]
fn every_way_to_be_wrong_has_its_error() {
    let mut bytes = frame(|out| server_hello().encode(out));
    assert_eq!(decode(&bytes[..18]), Err(DecodeFrame::Short { kind: kind::SERVER_HELLO, field: "crc" }));
    assert_eq!(decode(&bytes[..3]), Err(DecodeFrame::Short { kind: 0, field: "body_len" }));
    let mut short = bytes[..HEADER_BYTES + 9 + CRC_BYTES].to_vec();
    short[0] = 9 + CRC_BYTES as u8;
    seal(&mut short);
    assert_eq!(decode(&short), Err(DecodeFrame::Short { kind: kind::SERVER_HELLO, field: "oldest" }));
    bytes[50] ^= 1;
    assert_eq!(decode(&bytes), Err(DecodeFrame::BadCrc { kind: kind::SERVER_HELLO }));
    bytes[HEADER_BYTES] = b'H';
    assert_eq!(decode(&bytes), Err(DecodeFrame::NotOurProtocol { magic: *b"HILLRACE" }));

    let long = FrameHeader { body_len: 5000, kind: kind::CLIENT_HELLO, flags: 0, request: 0 }.encode();
    let refused = DecodeFrame::TooLong { kind: kind::CLIENT_HELLO, len: 5000, max: 4096 };
    assert_eq!(FrameHeader::decode(&long, MAX_HELLO_BODY_BYTES), Err(refused));
    let long = FrameHeader { body_len: u32::MAX, kind: kind::DATA, flags: 0, request: 0 }.encode();
    let refused = DecodeFrame::TooLong { kind: kind::DATA, len: u32::MAX, max: MAX_BODY_BYTES };
    assert_eq!(FrameHeader::decode(&long, u32::MAX), Err(refused));

    let unknown = FrameHeader { body_len: 0, kind: 0x60, flags: 0, request: 0 };
    assert_eq!(Request::decode(&unknown, &[]), Err(DecodeFrame::UnknownKind { kind: 0x60 }));
    assert_eq!(Answer::decode(&unknown, &[]), Err(DecodeFrame::UnknownKind { kind: 0x60 }));

    let mut bytes = frame(|out| error().encode(5, out));
    let last = bytes.len() - CRC_BYTES - 1;
    bytes[last] = 0xFF;
    seal(&mut bytes);
    assert_eq!(decode(&bytes), Err(DecodeFrame::NotText { kind: kind::ERROR, field: "message" }));
}

#[test]
fn values_out_of_range_are_refused_by_name() {
    let wrong = |bytes: &[u8]| match decode(bytes) {
        Err(DecodeFrame::OutOfRange { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    let patched = |mut bytes: Vec<u8>, at: usize, new: &[u8]| {
        bytes[HEADER_BYTES + at..HEADER_BYTES + at + new.len()].copy_from_slice(new);
        seal(&mut bytes);
        bytes
    };
    let hello = frame(|out| server_hello().encode(out));
    assert_eq!(wrong(&patched(hello, 8, &[9, 0])), "oldest");
    let bytes = frame(|out| client_hello().encode(out));
    assert_eq!(wrong(&patched(bytes, 76, &[0xFF, 0])), "name");
    let bytes = frame(|out| read().encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 40, &[2, 0, 0, 0])), "end chunk");
    assert_eq!(wrong(&patched(bytes, 40, &[3, 4, 0, 0])), "end chunk");
    let bytes = frame(|out| batch().encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 28, &[0, 0])), "count");
    assert_eq!(wrong(&patched(bytes.clone(), 28, &[1, 4])), "count");
    assert_eq!(wrong(&patched(bytes, 56, &[0, 4, 0, 0])), "chunks of all items");
    let bytes = frame(|out| get_index().encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 24, &[0, 0, 0, 0])), "len");
    assert_eq!(wrong(&patched(bytes, 24, &[1, 0, 16, 0])), "len");
    let bytes = frame(|out| membership().encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 8, &[1, 1])), "count");
    assert_eq!(wrong(&patched(bytes, 36, b"w-0")), "name of worker");
    let bytes = frame(|out| announce().encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 16, &[1])), "pods listed");
    assert_eq!(wrong(&patched(bytes.clone(), 28, &[1, 1])), "pods listed");
    assert_eq!(wrong(&patched(bytes.clone(), 20, &[254])), "node");
    assert_eq!(wrong(&patched(bytes, 30, &[64])), "namespace");
    let bytes = frame(|out| mount_settings().encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 33, &[2])), "file mode");
    assert_eq!(wrong(&patched(bytes, 35, &[0x80])), "dir mode");
    let (head, crcs) = data();
    let bytes = frame(|out| head.encode(5, true, &crcs, out));
    assert_eq!(wrong(&patched(bytes.clone(), 8, &[17, 0])), "count");
    assert_eq!(wrong(&patched(bytes.clone(), 4, &[0xFF; 4])), "count");
    assert_eq!(wrong(&patched(bytes, 12, &[0, 0, 1, 0])), "payload length");
    let bytes = frame(|out| IndexPartHead { total_len: 100, offset: 40, payload_len: 60 }.encode(5, out));
    assert_eq!(wrong(&patched(bytes.clone(), 8, &[41])), "offset");
    assert_eq!(wrong(&patched(bytes, 16, &[61])), "payload length");
}

#[test]
fn every_single_byte_corruption_is_refused_or_understood_within_bounds() {
    for good in all_frames() {
        assert!(decode(&good).is_ok());
        for at in 0..good.len() {
            for value in 0..=255 {
                let mut bytes = good.clone();
                bytes[at] = value;
                let is_same = bytes == good;
                // The reserved bytes may be anything once they mean something; until then they do not count.
                let counts = !(6..8).contains(&at);
                assert_eq!(decode(&bytes).is_ok(), is_same || !counts, "byte {at} of {good:02x?} = {value}");
                seal(&mut bytes);
                let _ = decode(&bytes);
            }
        }
    }
}

#[test]
fn every_truncation_is_refused_or_understood_within_bounds() {
    for good in all_frames() {
        for len in 0..good.len() {
            let _ = decode(&good[..len]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mutated_frames_never_panic(
        which in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..5),
        cut in prop::option::of(any::<prop::sample::Index>()),
        is_sealed: bool,
    ) {
        thread_local!(static FRAMES: Vec<Vec<u8>> = all_frames());
        let mut bytes = FRAMES.with(|frames| which.get(frames).clone());
        for (at, value) in changes {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        if is_sealed {
            seal(&mut bytes);
        }
        let _ = decode(&bytes);
    }
}

proptest! {
    #[test]
    fn any_batch_reads_back(
        items in prop::collection::vec((any::<u32>(), any::<[u8; 16]>(), 0u32..u32::MAX - 64, 1u32..32), 1..32),
        version: [u8; 16], epoch: u64, deadline_ms: u32, flags: u8, request: u64,
    ) {
        let item = |(file, content, start, len)| BatchItem { file, content: ContentId(content), chunks: start..start + len };
        let items = items.into_iter().map(item).collect();
        let batch = Request::BatchRead(BatchRead { version: VersionId(version), items, epoch, deadline_ms, flags });
        let bytes = frame(|out| batch.encode(request, out));
        let (header, body) = parts(&bytes);
        prop_assert_eq!(header.request, request);
        prop_assert_eq!(Request::decode(&header, body), Ok(batch));
    }

    #[test]
    fn any_membership_reads_back(names in prop::collection::hash_set("[a-z0-9-]{1,63}", 0..50), epoch: u64, weight: u32) {
        let worker = |name: String| Worker { address: format!("{name}.svc:7420"), name, weight };
        let membership = Membership { epoch, workers: names.into_iter().map(worker).collect() };
        let bytes = frame(|out| Answer::Membership(membership.clone()).encode(0, out));
        let (header, body) = parts(&bytes);
        prop_assert_eq!(Answer::decode(&header, body), Ok(Answer::Membership(membership)));
    }

    #[test]
    fn any_data_head_reads_back(item: u32, first_chunk in 0u32..u32::MAX - 16, payload_len in 1u32..=MAX_PAYLOAD_BYTES, epoch: u64, is_last: bool) {
        let count = payload_len.div_ceil(65_536) as u16;
        let head = DataHead { item, first_chunk, count, payload_len, epoch };
        let crcs: Vec<u32> = (0..u32::from(count)).collect();
        let bytes = frame(|out| head.encode(1, is_last, &crcs, out));
        let (header, body) = parts(&bytes);
        prop_assert!(bytes.len() <= DataHead::MAX_PREFIX_BYTES);
        prop_assert_eq!(DataHead::decode(&header, body), Ok(head));
    }
}
