//! Is a folder served as it is on the disk?

use std::fs;

use millrace_s3_server::server::{S3Server, StartError};

use crate::client::{anonymous, get, refusal};

#[tokio::test]
async fn files_are_served_byte_for_byte_and_changes_are_seen() {
    let root = tempfile::tempdir().unwrap();
    let large: Vec<u8> =
        (0..5_000_001_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::create_dir(root.path().join("dir")).unwrap();
    fs::write(root.path().join("dir/large"), &large).unwrap();
    fs::write(root.path().join("empty"), b"").unwrap();
    let server = S3Server::builder().bucket("data", root.path()).start().await.unwrap();
    let client = anonymous(&server);
    assert!(get(&client, "data", "dir/large").await == large);
    assert_eq!(get(&client, "data", "empty").await, b"");
    let part = client
        .get_object()
        .bucket("data")
        .key("dir/large")
        .range("bytes=4000000-4999999")
        .send()
        .await
        .unwrap();
    let etag = part.e_tag().unwrap().to_owned();
    assert!(part.body.collect().await.unwrap().to_vec() == large[4_000_000..5_000_000]);
    let listed = client.list_objects_v2().bucket("data").prefix("dir/").send().await.unwrap();
    assert_eq!(listed.contents()[0].e_tag(), Some(etag.as_str()));
    fs::write(root.path().join("dir/large"), b"other").unwrap();
    let changed = client.get_object().bucket("data").key("dir/large").if_match(&etag).send().await;
    assert_eq!(refusal(changed).0, 412);
}

#[tokio::test]
async fn a_folder_is_read_only_and_has_no_way_out() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("secret"), b"s").unwrap();
    fs::create_dir(root.path().join("served")).unwrap();
    let server = S3Server::builder().bucket("data", root.path().join("served")).start().await.unwrap();
    let client = anonymous(&server);
    for key in ["../secret", "x/../../secret", "/etc/passwd", "", "."] {
        if !key.is_empty() {
            assert_eq!(refusal(client.get_object().bucket("data").key(key).send().await).0, 404, "{key}");
        }
    }
    assert_eq!(refusal(client.put_object().bucket("data").key("k").send().await).0, 405);
    assert_eq!(refusal(client.delete_object().bucket("data").key("k").send().await).0, 405);
}

#[tokio::test]
async fn a_folder_that_is_not_there_is_named() {
    let err = S3Server::builder()
        .bucket("data", std::path::Path::new("/nowhere/at/all"))
        .start()
        .await
        .unwrap_err();
    assert!(matches!(err, StartError::Folder { .. }) && err.to_string().contains("/nowhere/at/all"), "{err}");
}
