//! A map that keeps what was used lately.

use std::collections::HashMap;
use std::hash::Hash;
use std::mem;

/// At most twice `half` entries: when the newer half is full it becomes the older one, and what was not asked
/// for since is forgotten.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    half: usize,
    newer: HashMap<K, V>,
    older: HashMap<K, V>,
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    pub(crate) fn new(half: usize) -> Self {
        Self { half, newer: HashMap::new(), older: HashMap::new() }
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<V> {
        if let Some(value) = self.newer.get(key) {
            return Some(value.clone());
        }
        let (key, value) = self.older.remove_entry(key)?;
        self.insert(key, value.clone());
        Some(value)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.newer.len() >= self.half {
            self.older = mem::take(&mut self.newer);
        }
        self.newer.insert(key, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked_for_stays_and_the_rest_goes() {
        let mut recent = Recent::new(2);
        recent.insert(0, 'a');
        for key in 1..20 {
            assert_eq!(recent.get(&0), Some('a'), "after {key}");
            recent.insert(key, 'x');
            assert!(recent.newer.len() + recent.older.len() <= 4);
        }
        assert_eq!(recent.get(&1), None);
        assert_eq!(recent.get(&19), Some('x'));
    }
}
