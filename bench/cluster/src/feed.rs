//! What happens elsewhere, in the order in which it was heard of.

use std::time::Duration;

use anyhow::{Context as _, Result};
use futures::{Stream, StreamExt as _};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// What nobody has looked at yet. A run that leaves more of it behind has lost its way.
const WAITING: usize = 65_536;

/// News that are heard from the moment on in which this was made. Dropping it ends the listening.
pub(crate) struct Feed<T> {
    news: mpsc::Receiver<T>,
    task: JoinHandle<()>,
}

impl<T: Send + 'static> Feed<T> {
    /// Listens to `source` in the background.
    pub(crate) fn of(source: impl Stream<Item = T> + Send + 'static) -> Self {
        let (send, news) = mpsc::channel(WAITING);
        let task = tokio::spawn(async move {
            let mut source = std::pin::pin!(source);
            while let Some(one) = source.next().await {
                if send.send(one).await.is_err() {
                    return;
                }
            }
        });
        Self { news, task }
    }

    /// Passes news over until `pick` finds what it looks for.
    pub(crate) async fn find<R>(
        &mut self,
        what: &str,
        limit: Duration,
        mut pick: impl FnMut(&T) -> Option<R>,
    ) -> Result<R> {
        let finding = async {
            while let Some(one) = self.news.recv().await {
                if let Some(found) = pick(&one) {
                    return Ok(found);
                }
            }
            anyhow::bail!("nothing is heard any more")
        };
        let found = tokio::time::timeout(limit, finding).await;
        found
            .with_context(|| format!("not in {} s", limit.as_secs()))
            .flatten()
            .with_context(|| what.to_owned())
    }

    /// Forgets what has been heard so far.
    pub(crate) fn skip(&mut self) {
        while self.news.try_recv().is_ok() {}
    }
}

impl<T> Drop for Feed<T> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(5);

    #[tokio::test]
    async fn what_was_passed_over_does_not_come_back() {
        let mut feed = Feed::of(futures::stream::iter([1, 2, 3]));
        assert_eq!(feed.find("two", SOON, |one| (*one == 2).then_some(*one)).await.unwrap(), 2);
        let error = feed.find("one", SOON, |one| (*one == 1).then_some(())).await.unwrap_err();
        assert_eq!(format!("{error:#}"), "one: nothing is heard any more");
    }

    #[tokio::test]
    async fn waiting_has_an_end() {
        let mut feed: Feed<u8> = Feed::of(futures::stream::pending());
        let error = feed.find("anything", Duration::from_millis(10), |_| Some(())).await.unwrap_err();
        assert!(format!("{error:#}").starts_with("anything: not in 0 s"), "{error:#}");
    }
}
