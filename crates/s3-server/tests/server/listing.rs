//! Are listings complete, in order and in pages, whatever the keys?

use std::collections::BTreeSet;

use aws_sdk_s3::Client;
use aws_sdk_s3::types::EncodingType;
use millrace_s3_server::backend::memory::InMemory;
use millrace_s3_server::backend::spec::SyntheticSpec;
use millrace_s3_server::server::S3Server;

use crate::client::{anonymous, raw, refusal};

/// All keys and common prefixes, in the order in which they came.
async fn walk(
    client: &Client,
    bucket: &str,
    prefix: &str,
    delimiter: Option<&str>,
    page: i32,
) -> (Vec<String>, Vec<String>) {
    let (mut keys, mut prefixes, mut token) = (Vec::new(), Vec::new(), None::<String>);
    loop {
        let asked = client.list_objects_v2().bucket(bucket).prefix(prefix).max_keys(page);
        let got = asked
            .set_delimiter(delimiter.map(str::to_owned))
            .set_continuation_token(token.take())
            .send()
            .await
            .unwrap();
        assert_eq!(got.key_count().unwrap() as usize, got.contents().len() + got.common_prefixes().len());
        keys.extend(got.contents().iter().map(|object| object.key().unwrap().to_owned()));
        prefixes.extend(got.common_prefixes().iter().map(|prefix| prefix.prefix().unwrap().to_owned()));
        token = got.next_continuation_token().map(str::to_owned);
        assert_eq!(got.is_truncated(), Some(token.is_some()));
        if token.is_none() {
            return (keys, prefixes);
        }
    }
}

#[tokio::test]
async fn pages_agree_with_the_model_for_every_prefix_and_delimiter() {
    let keys: BTreeSet<String> = (0..300)
        .map(|number| format!("{}/{}/{}", number % 3, number % 7, number))
        .chain(["a".into(), "a/".into(), "0".into(), "é".into()])
        .collect();
    let objects = InMemory::new();
    keys.iter().for_each(|key| drop(objects.put(key, "x")));
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let client = anonymous(&server);
    for prefix in ["", "0", "0/", "1/3/", "nothing", "a"] {
        for delimiter in [None, Some("/"), Some("/1")] {
            let (mut contents, mut prefixes) = (Vec::new(), BTreeSet::new());
            for key in keys.iter().filter(|key| key.starts_with(prefix)) {
                let rest = &key[prefix.len()..];
                match delimiter.and_then(|delimiter| rest.find(delimiter).map(|at| at + delimiter.len())) {
                    Some(end) => drop(prefixes.insert(key[..prefix.len() + end].to_owned())),
                    None => contents.push(key.clone()),
                }
            }
            let prefixes: Vec<_> = prefixes.into_iter().collect();
            for page in [7, 1000] {
                let got = walk(&client, "data", prefix, delimiter, page).await;
                assert_eq!(got, (contents.clone(), prefixes.clone()), "{prefix:?} {delimiter:?} {page}");
            }
        }
    }
}

#[tokio::test]
async fn a_listing_tells_etag_size_time_and_class() {
    let objects = InMemory::new();
    let etag = objects.put("k", "12345");
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let page = anonymous(&server).list_objects_v2().bucket("data").send().await.unwrap();
    let object = &page.contents()[0];
    assert_eq!(object.e_tag(), Some(format!("\"{etag}\"").as_str()));
    assert_eq!(object.size(), Some(5));
    assert_eq!(object.storage_class().unwrap().as_str(), "STANDARD");
    assert!(object.last_modified().is_some());
    assert_eq!((page.name(), page.max_keys(), page.is_truncated()), (Some("data"), Some(1000), Some(false)));
}

#[tokio::test]
async fn encoding_makes_every_key_valid_xml_even_when_it_is_not_utf8() {
    let objects = InMemory::new();
    for key in [&b"ctrl\x01\x7f"[..], b"bad\xff\xfe", b"a b+c", b"<&>\"'", "é".as_bytes()] {
        objects.put(key, "x");
    }
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let client = anonymous(&server);
    let page = client.list_objects_v2().bucket("data").encoding_type(EncodingType::Url).send().await.unwrap();
    let keys: Vec<_> = page.contents().iter().map(|object| object.key().unwrap()).collect();
    assert_eq!(keys, ["%3C%26%3E%22%27", "a+b%2Bc", "bad%FF%FE", "ctrl%01%7F", "%C3%A9"]);
    assert_eq!(page.encoding_type(), Some(&EncodingType::Url));
    let page = client.list_objects_v2().bucket("data").prefix("<").send().await.unwrap();
    assert_eq!(page.contents()[0].key(), Some("<&>\"'"));
}

#[tokio::test]
async fn start_after_and_bad_tokens_are_handled() {
    let objects = InMemory::new().with("a", "").with("b", "").with("c", "");
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let client = anonymous(&server);
    let page = client.list_objects_v2().bucket("data").start_after("a").send().await.unwrap();
    assert_eq!(page.contents().iter().map(|object| object.key().unwrap()).collect::<Vec<_>>(), ["b", "c"]);
    let refused =
        refusal(client.list_objects_v2().bucket("data").continuation_token("no token").send().await);
    assert_eq!(refused, (400, "InvalidArgument".to_owned()));
    let page = client.list_objects_v2().bucket("data").max_keys(0).send().await.unwrap();
    assert_eq!((page.contents().len(), page.is_truncated()), (0, Some(false)));
}

#[tokio::test]
async fn the_first_version_of_the_api_pages_by_markers() {
    let objects = InMemory::new();
    ["a/1", "a/2", "b", "c/1", "d"].iter().for_each(|key| drop(objects.put(key, "")));
    let server = S3Server::builder().bucket("data", &objects).start().await.unwrap();
    let client = anonymous(&server);
    let (mut seen, mut marker) = (Vec::new(), None::<String>);
    loop {
        let page = client
            .list_objects()
            .bucket("data")
            .delimiter("/")
            .max_keys(1)
            .set_marker(marker.take())
            .send()
            .await
            .unwrap();
        seen.extend(page.contents().iter().map(|object| object.key().unwrap().to_owned()));
        seen.extend(page.common_prefixes().iter().map(|prefix| prefix.prefix().unwrap().to_owned()));
        if page.is_truncated() != Some(true) {
            break;
        }
        marker = page.next_marker().map(str::to_owned);
    }
    assert_eq!(seen, ["a/", "b", "c/", "d"]);
}

#[tokio::test]
async fn buckets_are_listed() {
    let server = S3Server::builder()
        .bucket("one", InMemory::new())
        .bucket("two", InMemory::new())
        .start()
        .await
        .unwrap();
    let list = anonymous(&server).list_buckets().send().await.unwrap();
    let names: Vec<_> = list.buckets().iter().map(|bucket| bucket.name().unwrap()).collect();
    assert_eq!(names, ["one", "two"]);
}

#[tokio::test]
async fn a_million_keys_are_listed_from_any_place() {
    let spec: SyntheticSpec = "objects=1000000,per-dir=100,depth=2,prefix=p/".parse().unwrap();
    let server = S3Server::builder().bucket("synthetic", spec).start().await.unwrap();
    let client = anonymous(&server);
    let (_, top) = walk(&client, "synthetic", "p/", Some("/"), 1000).await;
    assert_eq!(top.len(), 100);
    let (below, dirs) = walk(&client, "synthetic", &top[99], Some("/"), 1000).await;
    assert_eq!((below.len(), dirs.len()), (0, 100));
    let (keys, _) = walk(&client, "synthetic", &top[41], None, 1000).await;
    assert!(keys.len() == 10_000 && keys.is_sorted());
    let answer = raw(&server, "GET /synthetic?list-type=2&start-after=p/d99/d99/f00999998.bin HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await;
    assert!(answer.contains("<KeyCount>1</KeyCount>") && answer.contains("f00999999.bin"), "{answer}");
}
