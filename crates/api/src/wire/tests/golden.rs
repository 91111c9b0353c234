//! Which bytes are the frames? Pinned: a change of one of them is a change of the protocol.

use super::*;

#[test]
fn golden_hellos() {
    assert_eq!(
        pinned(frame(|out| server_hello().encode(out))),
        format!(
            "38000000010000000000000000000000{}01000200{}{}",
            hex(b"MILLRACE"),
            "0400000000000000",
            "aa".repeat(32)
        )
    );
    assert_eq!(
        pinned(frame(|out| client_hello().encode(out))),
        format!(
            "64000000020000000000000000000000{}{}{}{}{}{}",
            "01000400000000000000",
            "bb".repeat(32),
            "cc".repeat(32),
            format_args!("01000600{}", hex(b"node-7")),
            "02000800",
            "0201000000000000"
        )
    );
    assert_eq!(
        pinned(frame(|out| hello_ok("").encode(out))),
        format!("340000000300000000000000000000000400000000000000{}0900000000000000", "dd".repeat(32))
    );
    assert_eq!(
        pinned(frame(|out| hello_ok("6e9f").encode(out))),
        format!(
            "3c0000000300000000000000000000000400000000000000{}09000000000000000100040036653966",
            "dd".repeat(32)
        )
    );
    assert_eq!(
        pinned(frame(|out| Refused { code: ErrorCode::WrongKey, message: "no".into() }.encode(out))),
        "0a0000000400000000000000000000000e0002006e6f"
    );
}

#[test]
fn golden_requests() {
    let golden = |request: Request| pinned(frame(|out| request.encode(0x0105, out)));
    let (version, content) = ("d5".repeat(16), "c0".repeat(16));
    assert_eq!(
        golden(read()),
        format!(
            "3c000000100100000501000000000000{version}07000000{content}02000000050000000300000000000000c0d40100"
        )
    );
    assert_eq!(
        golden(batch()),
        format!(
            "5c000000110000000501000000000000{version}0300000000000000e803000002000000\
             07000000{content}000000000100000008000000{content}0000000001000000"
        )
    );
    assert_eq!(
        golden(get_index()),
        format!("20000000140000000501000000000000{version}000010000000000000001000")
    );
    assert_eq!(golden(Request::Cancel), "04000000120000000501000000000000");
    assert_eq!(golden(Request::GetMembership), "04000000130000000501000000000000");
    let ping = frame(|out| Request::Ping.encode(0x0105, out));
    assert_eq!(hex(&ping), "0400000015000000050100000000000060b9c969");
    assert_eq!(golden(Request::Ping), "04000000150000000501000000000000");
    assert_eq!(golden(Request::GetMountSettings), "04000000160000000501000000000000");
    assert_eq!(
        golden(announce()),
        format!(
            "42000000170000000501000000000000{version}03000000{}{}0200{}{}{}{}{}{}{}{}{}{}",
            "0600",
            hex(b"node-7"),
            "0600",
            hex(b"vision"),
            "010061",
            "0300",
            hex(b"u-1"),
            "0600",
            hex(b"vision"),
            "010062",
            "0300",
            hex(b"u-1"),
        )
    );
}

#[test]
fn golden_answers() {
    let golden = |answer: Answer| pinned(frame(|out| answer.encode(0x0105, out)));
    assert_eq!(golden(Answer::Pending { epoch: 9 }), "0c0000008100000005010000000000000900000000000000");
    assert_eq!(golden(Answer::Pong { epoch: 9 }), "0c0000008580000005010000000000000900000000000000");
    assert_eq!(
        golden(error()),
        format!(
            "260000008280000005010000000000000300000003000900000000000000{}{}",
            "1200",
            hex(b"object \"a\" changed")
        )
    );
    assert_eq!(
        golden(membership()),
        format!(
            "3e0000008380000005010000000000000900000000000000{}{}{}{}{}{}{}{}{}",
            "0200",
            "0300",
            hex(b"w-0"),
            "0d00",
            hex(b"10.0.0.1:7420"),
            "01000000",
            "0300",
            hex(b"w-1"),
            format_args!("0d00{}c8000000", hex(b"10.0.0.1:7420"))
        )
    );
    assert_eq!(
        golden(mount_settings()),
        format!(
            "29000000868000000501000000000000{}000000800c000000e80300006400000024016d0102",
            "d5".repeat(16)
        )
    );
    let (head, crcs) = data();
    assert_eq!(
        pinned(frame(|out| head.encode(0x0105, true, &crcs, out))),
        "2500010080800000050100000000000001000000020000000200000001000100090000000000000004030201\
         08070605"
    );
    let part = IndexPartHead { total_len: 100, offset: 40, payload_len: 60 };
    assert_eq!(
        pinned(frame(|out| part.encode(0x0105, out))),
        "58000000848000000501000000000000640000000000000028000000000000003c00000000000000"
    );
}

#[test]
fn mount_settings_without_a_mode_are_those_of_the_first_builds() {
    let mut bytes = frame(|out| mount_settings().encode(5, out));
    // One byte less before the CRC, as they sent it.
    bytes.truncate(bytes.len() - 1);
    bytes[0] -= 1;
    seal(&mut bytes);
    let (header, body) = parts(&bytes);
    let Ok(Answer::MountSettings(settings)) = Answer::decode(&header, body) else { panic!() };
    assert_eq!((settings.dir_mode, settings.mode), (0o555, MountMode::Auto));
    // One of a build to come.
    let mut bytes = frame(|out| mount_settings().encode(5, out));
    let at = bytes.len() - CRC_BYTES - 1;
    bytes[at] = 77;
    seal(&mut bytes);
    let (header, body) = parts(&bytes);
    let Ok(Answer::MountSettings(settings)) = Answer::decode(&header, body) else { panic!() };
    assert_eq!(settings.mode, MountMode::Auto);
}
