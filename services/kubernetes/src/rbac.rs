//! Every right that the placement uses, as data: the Role in the manifests is compared with it, so that neither
//! has one more than the other.

/// Where a right applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// In the builders' namespace.
    Namespace,
    /// In the whole cluster. The placement works without, and says less.
    Cluster,
}

/// One resource and what is done with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Where.
    pub scope: Scope,
    /// The API group; empty for the core.
    pub group: &'static str,
    /// The resource.
    pub resource: &'static str,
    /// The verbs, sorted.
    pub verbs: &'static [&'static str],
    /// What for.
    pub purpose: &'static str,
}

/// Everything.
pub const RULES: &[Rule] = &[
    Rule {
        scope: Scope::Namespace,
        group: "",
        resource: "pods",
        verbs: &["create", "delete", "list", "patch", "watch"],
        purpose: "builder pods: made, watched, claimed by their annotations, retired",
    },
    Rule {
        scope: Scope::Namespace,
        group: "",
        resource: "secrets",
        verbs: &["create"],
        purpose: "a pod's certificate; never read again, removed with its pod",
    },
    Rule {
        scope: Scope::Namespace,
        group: "",
        resource: "configmaps",
        verbs: &["create", "patch"],
        purpose: "buildkitd.toml by server-side apply, and what all builder pods belong to",
    },
    Rule {
        scope: Scope::Cluster,
        group: "",
        resource: "nodes",
        verbs: &["get", "list"],
        purpose: "whether nodes offer user namespaces; whether a pod's node was drained or lost",
    },
];
