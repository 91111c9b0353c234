//! Are heads, bodies, ranges and conditions as S3's?

use aws_sdk_s3::primitives::ByteStream;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::config::BucketConfig;
use millrace_s3_server::server::S3Server;
use millrace_s3_server::synthetic;

use crate::client::{anonymous, get, raw, refusal};

async fn start(objects: &InMemory) -> S3Server {
    S3Server::builder().bucket("data", objects).start().await.unwrap()
}

#[tokio::test]
async fn a_body_comes_with_its_etag_size_and_time() {
    let objects = InMemory::new();
    let etag = objects.put("a/b", "hello");
    let server = start(&objects).await;
    let client = anonymous(&server);
    let object = client.get_object().bucket("data").key("a/b").send().await.unwrap();
    assert_eq!(object.e_tag(), Some(format!("\"{etag}\"").as_str()));
    assert_eq!(object.content_length(), Some(5));
    assert!(object.last_modified().is_some());
    assert_eq!(object.accept_ranges(), Some("bytes"));
    assert_eq!(object.body.collect().await.unwrap().to_vec(), b"hello");
    let head = client.head_object().bucket("data").key("a/b").send().await.unwrap();
    assert_eq!((head.e_tag(), head.content_length()), (Some(format!("\"{etag}\"").as_str()), Some(5)));
}

#[tokio::test]
async fn ranges_give_their_bytes_and_say_where_they_are() {
    let body: Vec<u8> = (0..1_000_000_u32).map(|index| (index % 251) as u8).collect();
    let server = start(&InMemory::new().with("k", body.clone()).with("empty", "")).await;
    let client = anonymous(&server);
    for (range, first, end) in [
        ("bytes=0-0", 0, 1),
        ("bytes=10-99999", 10, 100_000),
        ("bytes=999999-", 999_999, 1_000_000),
        ("bytes=0-", 0, 1_000_000),
        ("bytes=5-2000000", 5, 1_000_000),
        ("bytes=-7", 999_993, 1_000_000),
        ("bytes=-2000000", 0, 1_000_000),
    ] {
        let object = client.get_object().bucket("data").key("k").range(range).send().await.unwrap();
        assert_eq!(
            object.content_range(),
            Some(format!("bytes {first}-{}/1000000", end - 1).as_str()),
            "{range}"
        );
        assert_eq!(object.content_length(), Some((end - first) as i64));
        assert_eq!(object.body.collect().await.unwrap().to_vec(), body[first..end], "{range}");
    }
    for (key, range) in [("k", "bytes=1000000-"), ("k", "bytes=-0"), ("empty", "bytes=0-")] {
        let refused = refusal(client.get_object().bucket("data").key(key).range(range).send().await);
        assert_eq!(refused, (416, "InvalidRange".to_owned()), "{key} {range}");
    }
    assert_eq!(get(&client, "data", "empty").await, b"");
}

#[tokio::test]
async fn conditions_decide_between_200_304_and_412() {
    let objects = InMemory::new();
    let etag = format!("\"{}\"", objects.put("k", "body"));
    let server = start(&objects).await;
    let client = anonymous(&server);
    let ask = || client.get_object().bucket("data").key("k");
    assert!(ask().if_match(&etag).send().await.is_ok());
    assert!(ask().if_match("*").send().await.is_ok());
    assert!(ask().if_none_match("\"other\"").send().await.is_ok());
    let refused = refusal(ask().if_match("\"other\"").send().await);
    assert_eq!(refused, (412, "PreconditionFailed".to_owned()));
    assert_eq!(refusal(ask().if_match("\"other\"").range("bytes=0-0").send().await).0, 412);
    assert_eq!(refusal(ask().if_none_match(&etag).send().await).0, 304);
    let head = client.head_object().bucket("data").key("k").if_match("\"other\"").send().await;
    assert_eq!(refusal(head).0, 412);
    objects.put("k", "other body");
    assert_eq!(refusal(ask().if_match(&etag).send().await).0, 412);
}

#[tokio::test]
async fn what_is_not_there_is_told_apart() {
    let server = start(&InMemory::new()).await;
    let client = anonymous(&server);
    let object = |bucket: &str| client.get_object().bucket(bucket).key("k").send();
    assert_eq!(refusal(object("data").await), (404, "NoSuchKey".to_owned()));
    assert_eq!(refusal(object("nowhere").await), (404, "NoSuchBucket".to_owned()));
    assert_eq!(refusal(client.head_object().bucket("data").key("k").send().await).0, 404);
    assert_eq!(
        refusal(client.list_objects_v2().bucket("nowhere").send().await),
        (404, "NoSuchBucket".to_owned())
    );
    assert!(client.head_bucket().bucket("data").send().await.is_ok());
    assert_eq!(refusal(client.head_bucket().bucket("nowhere").send().await).0, 404);
}

#[tokio::test]
async fn awkward_keys_are_read_back_as_they_were_put() {
    let long = "k".repeat(1024);
    let keys = [
        "a//b",
        "/lead",
        "a/",
        "./a",
        "a/../b",
        "sp ace+plus",
        "ctrl\u{1}\n",
        "ünï/cödé",
        "%41",
        &long,
        "a?b&c=d#e",
        "//",
    ];
    let objects = InMemory::new();
    for key in keys {
        objects.put(key, format!("body of {key}"));
    }
    let server = start(&objects).await;
    let client = anonymous(&server);
    for key in keys {
        assert_eq!(get(&client, "data", key).await, format!("body of {key}").as_bytes(), "{key:?}");
    }
    assert_eq!(server.counters().get_bytes["data/a//b"], 12);
}

#[tokio::test]
async fn objects_are_put_and_deleted_through_the_protocol() {
    let objects = InMemory::new();
    let server = start(&objects).await;
    let client = anonymous(&server);
    let put = client
        .put_object()
        .bucket("data")
        .key("k")
        .body(ByteStream::from_static(b"body"))
        .send()
        .await
        .unwrap();
    assert_eq!(put.e_tag(), Some(format!("\"{}\"", objects.etag("k").unwrap()).as_str()));
    assert_eq!(get(&client, "data", "k").await, b"body");
    let again = client.put_object().bucket("data").key("k").if_none_match("*").send().await;
    assert_eq!(refusal(again).0, 412);
    client.delete_object().bucket("data").key("k").send().await.unwrap();
    assert!(objects.keys().is_empty());
}

#[tokio::test]
async fn archived_objects_are_listed_but_not_read() {
    let objects = InMemory::new().with("cold", "body");
    assert!(objects.set_storage_class("cold", "GLACIER") && !objects.set_storage_class("none", "GLACIER"));
    let server = start(&objects).await;
    let client = anonymous(&server);
    let page = client.list_objects_v2().bucket("data").send().await.unwrap();
    assert_eq!(page.contents()[0].storage_class().unwrap().as_str(), "GLACIER");
    let refused = refusal(client.get_object().bucket("data").key("cold").send().await);
    assert_eq!(refused, (403, "InvalidObjectState".to_owned()));
}

#[tokio::test]
async fn synthetic_bodies_are_what_fill_says_at_every_offset() {
    let spec: SyntheticSpec = "objects=3,size=5TiB".parse().unwrap();
    let server = S3Server::builder().bucket("synthetic", spec).start().await.unwrap();
    let client = anonymous(&server);
    for (offset, length) in [(0, 3_000_000), (5_000_000_000_u64, 1_000_001), ((5 << 40) - 10, 10)] {
        let range = format!("bytes={offset}-{}", offset + length - 1);
        let key = "f00000001.bin";
        let object = client.get_object().bucket("synthetic").key(key).range(range).send().await.unwrap();
        let bytes = object.body.collect().await.unwrap().to_vec();
        let mut expected = vec![0; length as usize];
        synthetic::fill(key, offset, &mut expected);
        assert!(bytes == expected && synthetic::matches(key, offset, &bytes));
    }
    assert_eq!(refusal(client.get_object().bucket("synthetic").key("f00000003.bin").send().await).0, 404);
}

#[tokio::test]
async fn the_requester_pays_or_is_refused() {
    let bucket = BucketConfig::new("data", InMemory::new().with("k", "body")).requester_pays();
    let server = S3Server::builder().bucket_config(bucket).start().await.unwrap();
    let client = anonymous(&server);
    let ask = || client.get_object().bucket("data").key("k");
    assert_eq!(refusal(ask().send().await), (403, "AccessDenied".to_owned()));
    assert!(ask().request_payer("requester".into()).send().await.is_ok());
    assert_eq!(refusal(client.list_objects_v2().bucket("data").send().await).0, 403);
}

#[tokio::test]
async fn a_bucket_may_be_a_host_name() {
    let server = start(&InMemory::new().with("a/k", "body")).await;
    let answer =
        raw(&server, "GET /a/k HTTP/1.1\r\nHost: data.localhost:9\r\nConnection: close\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("\r\n\r\nbody"), "{answer}");
    let answer =
        raw(&server, "GET /data/a/k HTTP/1.1\r\nHost: localhost:9\r\nConnection: close\r\n\r\n").await;
    assert!(answer.ends_with("\r\n\r\nbody"), "{answer}");
}
