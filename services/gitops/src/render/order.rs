//! Waves: an order in which every app comes after those that it needs.

use std::collections::{BTreeMap, BTreeSet};

use fabrique_core::id::AppName;

use super::Needs;

/// The waves of apps, and the circles that have none.
pub(super) struct Order<'a> {
    waves: BTreeMap<&'a AppName, u32>,
    /// Each as the apps along it, from the first by name.
    pub(super) circles: Vec<Vec<&'a AppName>>,
}

impl<'a> Order<'a> {
    /// The order of these apps. A need that is not among them orders nothing.
    pub(super) fn of(needs: &BTreeMap<&'a AppName, Needs>) -> Self {
        let known: BTreeMap<&AppName, &'a AppName> = needs.keys().map(|app| (*app, *app)).collect();
        let edges: BTreeMap<&'a AppName, BTreeSet<&'a AppName>> = needs
            .iter()
            .map(|(app, needs)| {
                (*app, needs.apps.iter().filter_map(|need| known.get(need).copied()).collect())
            })
            .collect();
        let waves = waves(&edges);
        let left = edges.into_iter().filter(|(app, _)| !waves.contains_key(app)).collect();
        Self { circles: circles(left), waves }
    }

    /// The wave of an app, from 0; nothing for one in a circle, or behind one.
    pub(super) fn wave(&self, app: &AppName) -> Option<u32> {
        self.waves.get(app).copied()
    }
}

type Edges<'a> = BTreeMap<&'a AppName, BTreeSet<&'a AppName>>;

fn waves<'a>(edges: &Edges<'a>) -> BTreeMap<&'a AppName, u32> {
    let mut dependants: BTreeMap<&AppName, Vec<&'a AppName>> = BTreeMap::new();
    let mut missing: BTreeMap<&AppName, usize> = BTreeMap::new();
    for (app, needs) in edges {
        missing.insert(*app, needs.len());
        for need in needs {
            dependants.entry(*need).or_default().push(*app);
        }
    }
    let mut waves: BTreeMap<&'a AppName, u32> = BTreeMap::new();
    let mut front: Vec<&'a AppName> =
        edges.iter().filter(|(_, n)| n.is_empty()).map(|(app, _)| *app).collect();
    let mut wave = 0;
    while !front.is_empty() {
        let mut next = Vec::new();
        for app in front {
            waves.insert(app, wave);
            for dependant in dependants.get(app).into_iter().flatten() {
                let Some(left) = missing.get_mut(*dependant) else { continue };
                *left -= 1;
                if *left == 0 {
                    next.push(*dependant);
                }
            }
        }
        front = next;
        wave += 1;
    }
    waves
}

/// One circle of each tangle. Every app that is left needs another that is.
fn circles<'a>(mut left: Edges<'a>) -> Vec<Vec<&'a AppName>> {
    let mut circles = Vec::new();
    while let Some(first) = left.keys().next().copied() {
        let mut path = vec![first];
        let circle = loop {
            let at = path.last().copied().unwrap_or(first);
            let next =
                left.get(at).and_then(|needs| needs.iter().find(|need| left.contains_key(*need)).copied());
            // Only behind a circle that was told already.
            let Some(next) = next else { break None };
            if let Some(start) = path.iter().position(|app| *app == next) {
                break Some(path.split_off(start));
            }
            path.push(next);
        };
        match circle {
            Some(mut circle) => {
                for app in &circle {
                    left.remove(*app);
                }
                let smallest = circle.iter().enumerate().min_by_key(|(_, app)| **app).map_or(0, |(at, _)| at);
                circle.rotate_left(smallest);
                circles.push(circle);
            }
            None => {
                for app in path {
                    left.remove(app);
                }
            }
        }
    }
    circles
}
