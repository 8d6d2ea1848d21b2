//! What pods have, and what an app may have beyond the others.

use fabrique_core::app::BuildResources;
use fabrique_core::quantity::{Bytes, Millicores};
use serde::{Deserialize, Serialize};

/// What a pod asks for and is held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// Processor time that is reserved.
    pub cpu: Millicores,
    /// Processor time that is never exceeded; unlimited when absent.
    pub cpu_limit: Option<Millicores>,
    /// Memory, reserved and never exceeded: a build that is promised less than it may use is killed on a full
    /// node.
    pub memory: Bytes,
    /// Room on the node's disk for logs and the container's own layer, without the cache. Absent where nodes do not
    /// account for their disk: a pod that asks for any would fit nowhere, so that no app gets any either.
    pub ephemeral_storage: Option<Bytes>,
}

impl Default for Resources {
    fn default() -> Self {
        Self {
            cpu: Millicores(500),
            cpu_limit: None,
            memory: Bytes::gibi(2),
            ephemeral_storage: Some(Bytes::gibi(2)),
        }
    }
}

impl Resources {
    /// These for an app with `wishes`. A pod has never less than the others', since these build on it in their turn;
    /// but no more processor time is reserved than may be used: where only the others' limit is below what is wished
    /// for, the limit gives way.
    #[must_use]
    pub(crate) fn with(&self, wishes: &BuildResources) -> Self {
        let cpu = self.cpu.max(wishes.cpu.unwrap_or(self.cpu));
        let raised = self.cpu_limit.map(|limit| limit.max(wishes.cpu.unwrap_or(limit)));
        let cpu_limit = wishes.cpu_limit.or(raised);
        Self {
            cpu: cpu_limit.map_or(cpu, |limit| cpu.min(limit)),
            cpu_limit,
            memory: self.memory.max(wishes.memory.unwrap_or(self.memory)),
            ephemeral_storage: self
                .ephemeral_storage
                .map(|own| own.max(wishes.ephemeral_storage.unwrap_or(own))),
        }
    }

    /// Whether a pod that has these is one for builds that are to have `wanted`. More of what is reserved does no harm;
    /// a limit on the processor is kept to, and so has to be the very one.
    #[must_use]
    pub(crate) fn cover(&self, wanted: &Self) -> bool {
        self.cpu >= wanted.cpu
            && self.cpu_limit == wanted.cpu_limit
            && self.memory >= wanted.memory
            && self.ephemeral_storage >= wanted.ephemeral_storage
    }
}

/// How much memory an app's builds get.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AppMemory {
    /// The first attempt; [`Resources::memory`] when absent.
    #[serde(default)]
    pub start: Option<Bytes>,
    /// After a build ran out of memory the next attempt gets twice as much, up to this.
    pub limit: Bytes,
}

/// The most that a registration may wish for; no bound where it is absent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ceiling {
    /// Processor time, reserved or as a limit.
    pub cpu: Option<Millicores>,
    /// Memory, at first or after an attempt that ran out of it.
    pub memory: Option<Bytes>,
    /// Room on the node's disk.
    pub ephemeral_storage: Option<Bytes>,
}

impl Ceiling {
    /// What of `wishes` is too much, for people; nothing when all of it may be had.
    #[must_use]
    pub fn refusal(&self, wishes: &BuildResources) -> Option<String> {
        fn above<T: Ord + Copy + std::fmt::Display>(
            key: &str,
            most: Option<T>,
            wished: [Option<T>; 2],
        ) -> Option<String> {
            let (most, wished) = (most?, wished.into_iter().flatten().max()?);
            (wished > most).then(|| {
                format!("{wished} of {key} are wished for, and max.{key} permits {most} at the most")
            })
        }
        above("cpu", self.cpu, [wishes.cpu, wishes.cpu_limit])
            .or_else(|| above("memory", self.memory, [wishes.memory, wishes.memory_limit]))
            .or_else(|| above("ephemeral_storage", self.ephemeral_storage, [wishes.ephemeral_storage, None]))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn wishes() -> impl Strategy<Value = BuildResources> {
        let amount = || prop::option::of(1u64..1 << 40);
        (amount(), amount(), amount(), amount(), amount()).prop_map(|(cpu, cpu_limit, memory, more, disk)| {
            BuildResources {
                cpu: cpu.map(Millicores),
                cpu_limit: cpu_limit.map(Millicores),
                memory: memory.map(Bytes),
                memory_limit: more.map(Bytes),
                ephemeral_storage: disk.map(Bytes),
            }
        })
    }

    proptest! {
        /// What the API server demands of every pod, and what the pool needs to find a pod for whoever had it made.
        #[test]
        fn whatever_is_wished_for_can_be_had(wishes in wishes(), limited in any::<bool>()) {
            let configured = Resources { cpu_limit: limited.then_some(Millicores(1000)), ..Resources::default() };
            let had = configured.with(&wishes);
            prop_assert!(had.cpu_limit.is_none_or(|limit| had.cpu <= limit));
            prop_assert!(wishes.cpu_limit.is_none_or(|limit| had.cpu_limit == Some(limit)));
            let reserved = wishes.cpu.map(|cpu| wishes.cpu_limit.map_or(cpu, |limit| cpu.min(limit)));
            prop_assert!(reserved.is_none_or(|cpu| had.cpu >= cpu));
            prop_assert_eq!(had.cpu_limit.is_some(), limited || wishes.cpu_limit.is_some());
            prop_assert!(had.memory >= configured.memory);
            prop_assert!(wishes.memory.is_none_or(|memory| had.memory >= memory));
            prop_assert!(had.cover(&had));
            let limit_raised = configured.cpu_limit.is_some_and(|limit| wishes.cpu.is_some_and(|cpu| cpu > limit));
            prop_assert!(had.cover(&configured) || wishes.cpu_limit.is_some() || limit_raised);
        }

        #[test]
        fn nothing_above_the_ceiling_passes(wishes in wishes(), most in 1u64..1 << 40) {
            let ceiling = Ceiling {
                cpu: Some(Millicores(most)),
                memory: Some(Bytes(most)),
                ephemeral_storage: Some(Bytes(most)),
            };
            let all = [
                wishes.cpu.map(|cpu| cpu.0), wishes.cpu_limit.map(|cpu| cpu.0),
                wishes.memory.map(|bytes| bytes.0), wishes.memory_limit.map(|bytes| bytes.0),
                wishes.ephemeral_storage.map(|bytes| bytes.0),
            ];
            prop_assert_eq!(ceiling.refusal(&wishes).is_some(), all.into_iter().flatten().any(|one| one > most));
            prop_assert_eq!(Ceiling::default().refusal(&wishes), None);
        }
    }

    #[test]
    fn where_disks_are_not_accounted_for_nobody_asks_for_any() {
        let configured = Resources { ephemeral_storage: None, ..Resources::default() };
        let wishes = BuildResources { ephemeral_storage: Some(Bytes::gibi(9)), ..BuildResources::default() };
        assert_eq!(configured.with(&wishes), configured);
    }

    #[test]
    fn a_refusal_names_the_key() {
        let ceiling = Ceiling { memory: Some(Bytes::gibi(4)), ..Ceiling::default() };
        let wishes = BuildResources { memory_limit: Some(Bytes::gibi(8)), ..BuildResources::default() };
        let refusal = ceiling.refusal(&wishes).unwrap();
        assert_eq!(refusal, "8Gi of memory are wished for, and max.memory permits 4Gi at the most");
    }
}
