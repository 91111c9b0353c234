//! How long does a request and its answer take by TCP alone?

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

/// Answers each request of one connection after the other, on a thread that ends with this process.
#[derive(Debug, Clone, Copy)]
pub struct Echo {
    /// Where.
    pub address: SocketAddr,
    request: usize,
    answer: usize,
}

impl Echo {
    /// Listens at an address of this host; requests and answers have so many bytes.
    ///
    /// # Errors
    /// Where it cannot listen.
    pub fn start(ip: Ipv4Addr, request: usize, answer: usize) -> Result<Self> {
        let listener = TcpListener::bind((ip, 0)).with_context(|| format!("listen at {ip}"))?;
        let address = listener.local_addr()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                // It ends when the client does.
                let _ = serve(stream, request, answer);
            }
        });
        Ok(Self { address, request, answer })
    }

    /// Connects from where the calling thread is.
    ///
    /// # Errors
    /// Where it cannot be reached.
    pub fn connect(&self) -> Result<TcpStream> {
        let stream =
            TcpStream::connect(self.address).with_context(|| format!("connect to {}", self.address))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Time of each of so many requests, one after the other.
    ///
    /// # Errors
    /// Where the connection breaks.
    pub fn ask(&self, stream: &mut TcpStream, times: usize) -> Result<Vec<Duration>> {
        let (request, mut answer) = (vec![1; self.request], vec![0; self.answer]);
        let ask = |_| {
            let started = Instant::now();
            stream.write_all(&request)?;
            stream.read_exact(&mut answer)?;
            Ok(started.elapsed())
        };
        (0..times).map(ask).collect()
    }
}

fn serve(mut stream: TcpStream, request: usize, answer: usize) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut request, answer) = (vec![0; request], vec![2; answer]);
    loop {
        stream.read_exact(&mut request)?;
        stream.write_all(&answer)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_is_answered_and_timed() {
        let echo = Echo::start(Ipv4Addr::LOCALHOST, 10, 100_000).unwrap();
        for _ in 0..2 {
            let times = echo.ask(&mut echo.connect().unwrap(), 5).unwrap();
            assert!(times.len() == 5 && times.iter().all(|time| *time > Duration::ZERO));
        }
    }
}
