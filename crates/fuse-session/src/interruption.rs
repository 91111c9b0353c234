//! Has the reader of a request given up, and who wants to know?

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// Tells whether the process that waits for a request was interrupted (a signal, Ctrl-C, SIGKILL).
///
/// An interrupted request still has to be answered, by EINTR or by its result.
pub struct Interruption(Mutex<State>);

#[derive(Default)]
struct State {
    is_interrupted: bool,
    hook: Option<Box<dyn FnOnce() + Send>>,
    waker: Option<Waker>,
}

impl Interruption {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(State::default())))
    }

    /// Tells whether the reader was interrupted.
    pub fn is_interrupted(&self) -> bool {
        self.0.lock().is_interrupted
    }

    /// Has `hook` run once when the reader is interrupted: on a session thread, so it must be short and may not wait;
    /// at once, on this thread, when that has happened already. A later hook takes the place of an earlier one.
    pub fn on_interrupt(&self, hook: Box<dyn FnOnce() + Send>) {
        let now = {
            let mut state = self.0.lock();
            match state.is_interrupted {
                true => hook,
                false => {
                    state.hook = Some(hook);
                    return;
                }
            }
        };
        now();
    }

    /// Waits, in any runtime, until the reader is interrupted; for ever if it is not. One task may wait at a time.
    ///
    /// # Cancel safety
    /// Safe.
    pub fn interrupted(self: &Arc<Self>) -> impl Future<Output = ()> + Send + use<> {
        Interrupted(Arc::clone(self))
    }

    /// Marks it and calls those who wait.
    pub(crate) fn interrupt(&self) {
        let (hook, waker) = {
            let mut state = self.0.lock();
            state.is_interrupted = true;
            (state.hook.take(), state.waker.take())
        };
        // Outside the lock: a hook may look at this very object.
        if let Some(hook) = hook {
            hook();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Forgets who waits, once the request is answered: a hook may hold the request's buffers alive.
    pub(crate) fn answered(&self) {
        let mut state = self.0.lock();
        let hooks = (state.hook.take(), state.waker.take());
        drop(state);
        drop(hooks);
    }
}

impl fmt::Debug for Interruption {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_tuple("Interruption").field(&self.is_interrupted()).finish()
    }
}

struct Interrupted(Arc<Interruption>);

impl Future for Interrupted {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.0.lock();
        if state.is_interrupted {
            return Poll::Ready(());
        }
        match &mut state.waker {
            Some(waker) => waker.clone_from(context.waker()),
            empty => *empty = Some(context.waker().clone()),
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, SeqCst);
        }
    }

    fn counting(count: &Arc<Count>) -> Box<dyn FnOnce() + Send> {
        let count = Arc::clone(count);
        Box::new(move || count.wake())
    }

    #[test]
    fn hook_runs_once_before_and_at_once_after_the_interrupt() {
        let (interruption, count) = (Interruption::new(), Arc::new(Count::default()));
        interruption.on_interrupt(counting(&count));
        assert_eq!(count.0.load(SeqCst), 0);
        interruption.interrupt();
        interruption.interrupt();
        assert_eq!(count.0.load(SeqCst), 1);
        interruption.on_interrupt(counting(&count));
        assert_eq!(count.0.load(SeqCst), 2);
    }

    #[test]
    fn future_wakes_and_ends_when_interrupted() {
        let (interruption, count) = (Interruption::new(), Arc::new(Count::default()));
        let waker = Waker::from(Arc::clone(&count));
        let mut context = Context::from_waker(&waker);
        let mut future = Box::pin(interruption.interrupted());
        assert!(future.as_mut().poll(&mut context).is_pending());
        interruption.interrupt();
        assert_eq!(count.0.load(SeqCst), 1);
        assert!(future.as_mut().poll(&mut context).is_ready());
    }

    #[test]
    fn answered_request_calls_nobody() {
        let (interruption, count) = (Interruption::new(), Arc::new(Count::default()));
        interruption.on_interrupt(counting(&count));
        interruption.answered();
        interruption.interrupt();
        assert_eq!(count.0.load(SeqCst), 0);
    }
}
