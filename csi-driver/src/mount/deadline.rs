//! How long may a call take that the kernel may never return from?

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::Duration;

/// A call that did not come back, or could not be made.
#[derive(Debug)]
pub enum NoAnswer {
    /// It takes longer than its deadline. Its thread is left behind, as nothing ends a call into a wedged mount.
    Deadline,
    /// Its thread could not be started, or panicked.
    Thread(std::io::Error),
}

/// Runs `call` on a thread of its own and waits for `deadline` at most. What comes after that goes to `late`, on that
/// thread, to be undone.
///
/// # Errors
/// [`NoAnswer`].
pub fn within<T: Send + 'static>(
    deadline: Duration,
    call: impl FnOnce() -> T + Send + 'static,
    late: impl FnOnce(T) + Send + 'static,
) -> Result<T, NoAnswer> {
    let (answer, answers) = channel();
    let run = move || {
        if let Err(unwanted) = answer.send(call()) {
            late(unwanted.0);
        }
    };
    let thread = Builder::new().name("mount-call".into()).spawn(run).map_err(NoAnswer::Thread)?;
    match answers.recv_timeout(deadline) {
        Ok(value) => Ok(value),
        Err(RecvTimeoutError::Timeout) => {
            // The answer may have been sent in this very moment; nobody else would take it.
            answers.try_recv().map_err(|_| NoAnswer::Deadline)
        }
        Err(RecvTimeoutError::Disconnected) => {
            let _ = thread.join(); // Its panic is what is reported here.
            Err(NoAnswer::Thread(std::io::Error::other("thread of a mount call panicked")))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn answer_in_time_is_given() {
        assert_eq!(within(Duration::from_secs(10), || 7, |_| ()).expect("in time"), 7);
    }

    #[test]
    fn call_that_hangs_is_left_and_its_late_answer_undone() {
        let (release, held) = channel::<()>();
        let (undone, undo) = channel();
        let start = Instant::now();
        let call = move || {
            held.recv().expect("released");
            7
        };
        let late = move |value| undone.send(value).expect("test waits");
        assert!(matches!(within(Duration::from_millis(20), call, late), Err(NoAnswer::Deadline)));
        assert!(start.elapsed() < Duration::from_secs(5));
        release.send(()).expect("thread waits");
        assert_eq!(undo.recv().expect("undone"), 7);
    }

    #[test]
    fn panic_of_a_call_is_an_error() {
        let answer = within(Duration::from_secs(10), || -> u8 { panic!("as the test wants") }, |_| ());
        assert!(matches!(answer, Err(NoAnswer::Thread(_))));
    }
}
