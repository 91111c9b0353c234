//! A network that stops, flips bits and sends in small parts.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// A TCP relay in front of a worker that can be stopped, like a process under SIGSTOP: what is sent to it stays in its
/// socket, and nothing comes back. It can also flip bits, and pass on in small parts.
pub struct Relay {
    pub address: std::net::SocketAddr,
    pub stopped: watch::Sender<bool>,
    _task: tokio::task::JoinHandle<()>,
}

/// What a relay does to what the worker sends.
#[derive(Clone, Copy)]
pub struct Damage {
    /// One bit in about so many bytes is flipped.
    pub flip_every: Option<u64>,
    /// Longest part that is passed on at once.
    pub part_bytes: usize,
}

const NO_DAMAGE: Damage = Damage { flip_every: None, part_bytes: 65536 };

impl Relay {
    pub async fn start(to: std::net::SocketAddr) -> Self {
        Self::start_with(to, NO_DAMAGE).await
    }

    pub async fn start_with(to: std::net::SocketAddr, damage: Damage) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stopped = watch::Sender::new(false);
        let watching = stopped.subscribe();
        let task = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let far = TcpStream::connect(to).await.unwrap();
                let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
                tokio::spawn(copy(near_read, far_write, watching.clone(), NO_DAMAGE));
                tokio::spawn(copy(far_read, near_write, watching.clone(), damage));
            }
        });
        Self { address, stopped, _task: task }
    }
}

async fn copy(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut stopped: watch::Receiver<bool>,
    damage: Damage,
) {
    let mut buffer = vec![0; damage.part_bytes];
    let mut random =
        u64::from(from.peer_addr().unwrap().port()) << 20 | u64::from(to.peer_addr().unwrap().port());
    let mut next_random = || {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        random >> 33
    };
    let mut until_flip = damage.flip_every.map(|every| next_random() % (2 * every));
    loop {
        if stopped.wait_for(|stopped| !stopped).await.is_err() {
            return;
        }
        match from.read(&mut buffer).await {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                while let (Some(left), Some(every)) = (&mut until_flip, damage.flip_every) {
                    if *left >= read as u64 {
                        *left -= read as u64;
                        break;
                    }
                    buffer[*left as usize] ^= 1 << (next_random() % 8);
                    *left += 1 + next_random() % (2 * every);
                }
                if stopped.wait_for(|stopped| !stopped).await.is_err()
                    || to.write_all(&buffer[..read]).await.is_err()
                {
                    return;
                }
            }
        }
    }
}
