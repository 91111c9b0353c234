//! How large is what a target shows, and is it well? Never waits for a mount that hangs.

use std::path::PathBuf;

use super::error::PublishError;
use super::{Publisher, blocking, steps};
use crate::mount::stale::Health;
use crate::node_mounts::slot::{MountState, Usage};
use steps::AtTarget;

/// What is told about a published target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Size of the dataset version; `None` where it is not known yet.
    pub usage: Option<Usage>,
    /// What is wrong with the target; `None` where nothing is.
    pub trouble: Option<String>,
}

impl Publisher {
    /// Tells about a published target.
    ///
    /// # Errors
    /// [`PublishError::NotPublished`], or what kept it from being looked at.
    pub async fn stats(&self, volume_id: String, path: PathBuf) -> Result<Stats, PublishError> {
        let target = self.resolve(&path).await?;
        let record = self.inner.records.get(&target).filter(|record| record.volume_id == volume_id);
        let Some(record) = record else {
            return Err(PublishError::NotPublished { volume_id, path });
        };
        let state = self.inner.mounts.get(&record.plan.key).map(|slot| slot.state.borrow().clone());
        let ready = match state {
            Some(MountState::Ready(ready)) => ready,
            Some(MountState::Starting(trouble)) => {
                let trouble = trouble.unwrap_or_else(|| "it is coming up".to_owned());
                return Ok(Stats {
                    usage: None,
                    trouble: Some(format!("the mount process does not serve: {trouble}")),
                });
            }
            Some(MountState::Stopping | MountState::Gone) | None => {
                return Ok(Stats { usage: None, trouble: Some("there is no mount process".to_owned()) });
            }
        };
        let usage = Some(ready.usage);
        if ready.is_silent {
            return Ok(Stats { usage, trouble: Some("the mount process gives no answer".to_owned()) });
        }
        let looked = target.clone();
        let trouble = blocking(move || {
            Ok(match steps::look(&looked)? {
                AtTarget::Free => Some("nothing is mounted at the target"),
                AtTarget::Foreign(_) => Some("something else is mounted over the target"),
                AtTarget::Ours(_) => match steps::health(&looked)? {
                    Health::Answers => None,
                    Health::Dead => Some("the mount is dead"),
                    Health::Silent => Some("the mount process gives no answer"),
                },
            })
        })
        .await?;
        let is_later = !self.inner.shown.is_first(&target, ready.generation);
        let restarted = "the mount process was started again since the pod began: containers that ran before see a dead mount until they are started again";
        let trouble = trouble.or(is_later.then_some(restarted)).map(str::to_owned);
        Ok(Stats { usage, trouble })
    }
}
