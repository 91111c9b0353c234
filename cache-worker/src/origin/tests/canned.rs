//! Servers that no S3 server would be: they say what a test wants them to say.

use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// A server that answers each request, by its path and query, with status 200 and a body; it ends when dropped.
pub(crate) struct Canned {
    /// URL of the server.
    pub(crate) endpoint: String,
    _serving: JoinSet<()>,
}

pub(crate) async fn serve(answer: impl Fn(&str) -> String + Send + Sync + 'static) -> Canned {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let answer = Arc::new(answer);
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((connection, _)) = listener.accept().await {
            let answer = answer.clone();
            connections.spawn(async move { converse(connection, &*answer).await });
        }
    });
    Canned { endpoint, _serving: serving }
}

async fn converse(mut connection: TcpStream, answer: &(impl Fn(&str) -> String + ?Sized)) {
    let mut request = Vec::new();
    loop {
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            match connection.read_buf(&mut request).await {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let text = String::from_utf8_lossy(&request).into_owned();
        request.clear();
        let body = answer(text.split(' ').nth(1).unwrap_or_default());
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        if connection.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
    }
}

/// A page of a listing with these keys, one byte each.
pub(crate) fn page(keys: &[String], next: Option<&str>) -> String {
    let objects: String = keys
        .iter()
        .map(|key| format!("<Contents><Key>{key}</Key><ETag>\"e\"</ETag><Size>1</Size></Contents>"))
        .collect();
    let next = next
        .map(|token| format!("<NextContinuationToken>{token}</NextContinuationToken>"))
        .unwrap_or_default();
    let is_truncated = !next.is_empty();
    format!("<ListBucketResult><IsTruncated>{is_truncated}</IsTruncated>{next}{objects}</ListBucketResult>")
}
