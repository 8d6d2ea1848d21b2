//! Apps that wait for the declaration of another one, or for its first Application.
//!
//! Whoever rests and waits notes so in the memory of the app that it waits for, and looks once more: what changed
//! between its first look and the note is seen then, and what changes later finds the note. So nobody has to know
//! who depends on whom, and an app that nobody waits for pays nothing. A name is taken off when its app is woken: one
//! that has to wait on rests again, and notes itself again.

use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::id::AppName;
use fabrique_core::memory::Memory;
use fabrique_core::view::View;
use fabrique_ports::PortResult;
use fabrique_ports::bus::{WakeCause, Wakes};
use fabrique_ports::records::Memories;

use crate::memory::AppMemory;
use crate::session::Session;

/// How many may wait for one app. Those who come later go on with the next sweep.
const WAITING: usize = 1_000;

impl Session {
    /// Notes in the memory of each app that this one waits for that it does. Whether one did not know yet: then it is
    /// to be looked at again.
    pub(crate) async fn wait_for_others(&self, app: &App, view: &View) -> PortResult<bool> {
        let memories = &self.context.ports.memories;
        let mut news = false;
        for other in &view.awaits {
            let memory = AppMemory::read(Arc::clone(memories), other, None).await?;
            if !note(&mut memory.get().await, &app.name) {
                continue;
            }
            memory
                .update(|memory| {
                    note(memory, &app.name);
                })
                .await?;
            news = true;
        }
        Ok(news)
    }

    /// Wakes those that wait for this app, once for each head that says it is ready, and after each commit. In the
    /// background: a build of its own does not wait for it, and what is missed is for the next sweep.
    pub(crate) async fn wake_dependants(&mut self, app: &App, view: &View) {
        let Some(head) = view.head.as_ref().filter(|head| self.told.as_ref() != Some(*head)) else { return };
        if app.source.declaration.is_none() {
            return;
        }
        match self.context.observer.says_ready(app, head).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(app = %app.name, %error, "it was not told whether dependants may go on");
                return;
            }
        }
        self.told = Some(head.clone());
        let (context, name, trace) = (Arc::clone(&self.context), app.name.clone(), self.trace.clone());
        tokio::spawn(async move {
            let cause = WakeCause {
                kind: "dependency".to_owned(),
                detail: format!("{name} is declared ready"),
                trace,
                at: context.ambient.now(),
                named: None,
            };
            let (memories, wakes) = (Arc::clone(&context.ports.memories), context.ports.wakes.as_ref());
            if let Err(error) = wake_waiting(memories, wakes, &name, &cause).await {
                tracing::warn!(app = %name, %error, "dependants were not woken; the next sweep does it");
            }
        });
    }
}

/// Notes that `dependant` waits. Whether that is new: it is not where it is noted already, nor where there is no place.
fn note(memory: &mut Memory, dependant: &AppName) -> bool {
    memory.awaited_by.len() < WAITING && memory.awaited_by.insert(dependant.clone())
}

/// Wakes those that wait for `app`. Their names go first: one that is woken and has to wait again notes it again, and
/// that note has to stay. The names of those that could not be woken are put back.
async fn wake_waiting(
    memories: Arc<dyn Memories>,
    wakes: &dyn Wakes,
    app: &AppName,
    cause: &WakeCause,
) -> PortResult<()> {
    let memory = AppMemory::read(memories, app, None).await?;
    let waiting = memory.get().await.awaited_by;
    if waiting.is_empty() {
        return Ok(());
    }
    memory.update(|memory| memory.awaited_by.retain(|dependant| !waiting.contains(dependant))).await?;
    for (woken, dependant) in waiting.iter().enumerate() {
        if let Err(error) = wakes.wake(dependant, cause).await {
            memory.update(|memory| memory.awaited_by.extend(waiting.iter().skip(woken).cloned())).await?;
            return Err(error);
        }
    }
    tracing::info!(%app, dependants = waiting.len(), "woken, since it is declared ready");
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use async_trait::async_trait;
    use fabrique_core::time::Timestamp;
    use fabrique_core::work::Generation;
    use fabrique_ports::records::{Swap, Versioned};
    use fabrique_ports::{Fault, Peer, PortError};

    use super::*;

    fn name(text: &str) -> AppName {
        AppName::parse(text).unwrap()
    }

    /// A bus on which whoever is woken finds at once that it has to wait for `app` again, but one that cannot be woken.
    #[derive(Default)]
    struct Bus {
        memories: Mutex<BTreeMap<AppName, Versioned<Memory>>>,
        woken: Mutex<Vec<AppName>>,
        deaf: Option<AppName>,
    }

    impl Bus {
        /// `mediawatch`, for which these wait.
        fn awaited_by(names: &[&str]) -> Self {
            let memory =
                Memory { awaited_by: names.iter().copied().map(name).collect(), ..Memory::default() };
            let memory = Versioned { value: memory, revision: 1 };
            Self { memories: Mutex::new(BTreeMap::from([(name("mediawatch"), memory)])), ..Self::default() }
        }

        fn waiting(&self) -> Vec<String> {
            let memories = self.memories.lock().unwrap();
            memories[&name("mediawatch")].value.awaited_by.iter().map(ToString::to_string).collect()
        }
    }

    #[async_trait]
    impl Memories for Bus {
        async fn memory(&self, app: &AppName) -> PortResult<Versioned<Memory>> {
            Ok(self.memories.lock().unwrap().get(app).cloned().unwrap_or_default())
        }

        async fn swap_memory(&self, app: &AppName, memory: &Memory, revision: u64) -> PortResult<Swap> {
            let mut memories = self.memories.lock().unwrap();
            let current = memories.entry(app.clone()).or_default();
            if current.revision != revision {
                return Ok(Swap::Lost);
            }
            *current = Versioned { value: memory.clone(), revision: revision + 1 };
            Ok(Swap::Done(current.revision))
        }

        async fn memories(&self) -> PortResult<Vec<(AppName, Memory)>> {
            Ok(Vec::new())
        }
    }

    #[async_trait]
    impl Wakes for Bus {
        async fn wake(&self, app: &AppName, _: &WakeCause) -> PortResult<Generation> {
            if self.deaf.as_ref() == Some(app) {
                return Err(PortError::new(Peer::Bus, Fault::Transient, "no answer"));
            }
            self.woken.lock().unwrap().push(app.clone());
            let mut memories = self.memories.lock().unwrap();
            let memory = memories.entry(name("mediawatch")).or_default();
            if note(&mut memory.value, app) {
                memory.revision += 1;
            }
            Ok(Generation::default())
        }
    }

    async fn wake(bus: &Arc<Bus>) -> PortResult<()> {
        let cause = WakeCause {
            kind: "dependency".to_owned(),
            detail: "mediawatch is declared ready".to_owned(),
            trace: None,
            at: Timestamp(0),
            named: None,
        };
        wake_waiting(Arc::clone(bus) as _, bus.as_ref(), &name("mediawatch"), &cause).await
    }

    #[tokio::test]
    async fn one_that_is_woken_and_has_to_wait_again_stays_noted() {
        let bus = Arc::new(Bus::awaited_by(&["atlas", "citation"]));
        wake(&bus).await.unwrap();
        assert_eq!(*bus.woken.lock().unwrap(), [name("atlas"), name("citation")]);
        assert_eq!(bus.waiting(), ["atlas", "citation"]);
    }

    #[tokio::test]
    async fn those_that_could_not_be_woken_stay_noted() {
        let bus = Bus::awaited_by(&["citation", "zebra"]);
        let bus = Arc::new(Bus { deaf: Some(name("citation")), ..bus });
        wake(&bus).await.unwrap_err();
        assert!(bus.woken.lock().unwrap().is_empty(), "the first does not answer");
        assert_eq!(bus.waiting(), ["citation", "zebra"]);
    }

    #[test]
    fn no_more_are_noted_than_there_is_place_for() {
        let mut memory = Memory::default();
        assert!(note(&mut memory, &name("citation")));
        assert!(!note(&mut memory, &name("citation")), "known already");
        let noted =
            (0..2 * WAITING).filter(|number| note(&mut memory, &name(&format!("app-{number}")))).count();
        assert_eq!((noted, memory.awaited_by.len()), (WAITING - 1, WAITING));
    }
}
