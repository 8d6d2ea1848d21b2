//! The order of apps that need each other.

use std::collections::BTreeMap;

use fabrique_core::id::AppName;
use petgraph::algo::kosaraju_scc;
use petgraph::graphmap::DiGraphMap;

use super::Declared;
use crate::Finding;

#[derive(Default)]
pub(super) struct Order {
    pub(super) findings: Vec<Finding>,
    pub(super) waves: BTreeMap<AppName, u32>,
}

/// Waves along the graph, and every group of apps that has none because they need each other in a circle.
pub(super) fn order(declared: &Declared<'_>) -> Order {
    let mut graph = DiGraphMap::<&AppName, ()>::new();
    for (app, (_, declaration)) in declared {
        graph.add_node(app);
        for needed in &declaration.depends_on.code_locations {
            if declared.contains_key(&needed.value) {
                graph.add_edge(app, &needed.value, ());
            }
        }
    }
    let mut order = Order::default();
    // Each group comes after those that it has edges to.
    for group in kosaraju_scc(&graph) {
        match group.as_slice() {
            [app] if !graph.contains_edge(app, app) => {
                let below: Option<Vec<u32>> =
                    graph.neighbors(app).map(|needed| order.waves.get(needed).copied()).collect();
                if let Some(below) = below {
                    order.waves.insert((*app).clone(), below.into_iter().max().map_or(0, |wave| wave + 1));
                }
            }
            _ => order.findings.extend(circle(&graph, &group, declared)),
        }
    }
    order
}

/// One finding for each app of a circle within `group`, at the dependency that closes it there.
fn circle(graph: &DiGraphMap<&AppName, ()>, group: &[&AppName], declared: &Declared<'_>) -> Vec<Finding> {
    let circle = shortest(graph, group);
    let names: Vec<&str> = circle.iter().chain(circle.first()).map(|app| app.as_str()).collect();
    let around = names.join(" → ");
    let steps = circle.iter().zip(circle.iter().cycle().skip(1));
    let findings = steps.filter_map(|(app, next)| {
        let (subject, declaration) = declared.get(app)?;
        let needed = declaration.depends_on.code_locations.iter().find(|needed| needed.value == **next)?;
        let declared = format!("code-location {next}");
        let found = format!("it closes the circle {around}");
        let remedy = "remove one of these dependencies: none of them could be first";
        let finding = Finding::between(&subject.file, needed.place(), declared, found, remedy);
        Some(finding.concerning(group.iter().map(|app| (*app).clone())))
    });
    findings.collect()
}

/// A shortest circle through the first app, by name, of a group in which everybody reaches everybody.
fn shortest<'s>(graph: &DiGraphMap<&'s AppName, ()>, group: &[&'s AppName]) -> Vec<&'s AppName> {
    let Some(start) = group.iter().min().copied() else { return Vec::new() };
    let mut came_from = BTreeMap::new();
    let mut front = vec![start];
    while !front.is_empty() {
        let mut next = Vec::new();
        for app in front {
            let mut needed: Vec<&AppName> =
                graph.neighbors(app).filter(|needed| group.contains(needed)).collect();
            needed.sort();
            for needed in needed {
                if needed == start {
                    return walked(&came_from, start, app);
                }
                if !came_from.contains_key(needed) {
                    came_from.insert(needed, app);
                    next.push(needed);
                }
            }
        }
        front = next;
    }
    vec![start]
}

fn walked<'s>(
    came_from: &BTreeMap<&'s AppName, &'s AppName>,
    start: &'s AppName,
    end: &'s AppName,
) -> Vec<&'s AppName> {
    let mut path = vec![end];
    let mut at = end;
    while at != start {
        let Some(before) = came_from.get(at) else { break };
        at = before;
        path.push(at);
    }
    path.reverse();
    path
}
