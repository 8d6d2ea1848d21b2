//! The source repository: a graph of commits, each with a tree, and one branch.

use std::collections::BTreeSet;

use fabrique_core::relation::{Relation, Watched};

use crate::ids::Rev;

/// What of a commit's tree matters here. Equal numbers are equal files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tree {
    /// The watched paths.
    pub(crate) watched: u32,
    /// The overlay.
    pub(crate) overlay: u32,
    /// The declaration, which is watched too.
    pub(crate) declares: Declares,
}

/// What a commit's declaration says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Declares {
    /// `ready: false`.
    pub(crate) not_ready: bool,
    /// `revision: …`, which may be no ancestor.
    pub(crate) pin: Option<Rev>,
}

/// What a new commit does to its parent's tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    Nothing,
    Watched,
    /// Watched paths, in a way that no build of them can succeed.
    Broken,
    Overlay,
    Both,
    /// Another declaration. The pin is a commit that there is.
    Declare {
        not_ready: bool,
        pin: Option<usize>,
    },
    /// Puts the tree of an earlier commit back, as `git revert` does.
    Restore(usize),
}

#[derive(Debug, Clone)]
struct Commit {
    parents: Vec<Rev>,
    tree: Tree,
}

#[derive(Debug, Clone)]
pub(crate) struct Source {
    commits: Vec<Commit>,
    /// Objects that the forge lost: collected, or never in the backup it was restored from.
    gone: BTreeSet<Rev>,
    broken: BTreeSet<u32>,
    contents: u32,
    head: Option<Rev>,
}

impl Source {
    /// A repository with one commit, `c0`, on its branch.
    pub(crate) fn new() -> Self {
        let first = Commit {
            parents: Vec::new(),
            tree: Tree { watched: 0, overlay: 0, declares: Declares::default() },
        };
        Self {
            commits: vec![first],
            gone: BTreeSet::new(),
            broken: BTreeSet::new(),
            contents: 0,
            head: Some(0),
        }
    }

    pub(crate) fn head(&self) -> Option<Rev> {
        self.head
    }

    pub(crate) fn len(&self) -> usize {
        self.commits.len()
    }

    pub(crate) fn tree(&self, rev: Rev) -> Tree {
        self.commits[rev].tree
    }

    pub(crate) fn is_broken(&self, rev: Rev) -> bool {
        self.broken.contains(&self.tree(rev).watched)
    }

    pub(crate) fn is_gone(&self, rev: Rev) -> bool {
        self.gone.contains(&rev)
    }

    pub(crate) fn gone(&self) -> &BTreeSet<Rev> {
        &self.gone
    }

    /// Makes a commit on top of `parents` without moving the branch.
    pub(crate) fn commit(&mut self, parents: Vec<Rev>, touch: Touch) -> Rev {
        let mut tree = self.tree(parents[0]);
        match touch {
            Touch::Nothing => {}
            Touch::Watched => tree.watched = self.fresh(),
            Touch::Broken => {
                tree.watched = self.fresh();
                self.broken.insert(tree.watched);
            }
            Touch::Overlay => tree.overlay = self.fresh(),
            Touch::Both => tree = Tree { watched: self.fresh(), overlay: self.fresh(), ..tree },
            Touch::Declare { not_ready, pin } => {
                let pin = pin.map(|pin| pin % self.commits.len());
                tree = Tree { watched: self.fresh(), declares: Declares { not_ready, pin }, ..tree };
            }
            Touch::Restore(of) => tree = self.tree(of % self.commits.len()),
        }
        self.commits.push(Commit { parents, tree });
        self.commits.len() - 1
    }

    fn fresh(&mut self) -> u32 {
        self.contents += 1;
        self.contents
    }

    /// Points the branch anywhere, as a push with force does. A push brings every object it needs.
    pub(crate) fn point(&mut self, head: Option<Rev>) {
        self.head = head;
        if let Some(head) = head {
            let reachable = self.reachable(head);
            self.gone.retain(|rev| !reachable.contains(rev));
        }
    }

    /// The ancestor `back` first parents before `rev`, or the root.
    pub(crate) fn back(&self, rev: Rev, back: usize) -> Rev {
        let mut at = rev;
        for _ in 0..back {
            match self.commits[at].parents.first() {
                Some(parent) => at = *parent,
                None => break,
            }
        }
        at
    }

    /// The forge loses every object that the branch does not reach.
    pub(crate) fn collect(&mut self) {
        let kept = self.head.map(|head| self.reachable(head)).unwrap_or_default();
        self.gone = (0..self.commits.len()).filter(|rev| !kept.contains(rev)).collect();
    }

    fn reachable(&self, from: Rev) -> BTreeSet<Rev> {
        let (mut seen, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(rev) = todo.pop() {
            if seen.insert(rev) {
                todo.extend(&self.commits[rev].parents);
            }
        }
        seen
    }

    /// Where `to` stands as seen from `from`, whatever the forge still knows: for the oracles.
    pub(crate) fn truly(&self, from: Rev, to: Rev) -> Relation {
        if from == to {
            Relation::Same
        } else if self.reachable(to).contains(&from) {
            Relation::Ahead
        } else if self.reachable(from).contains(&to) {
            Relation::Behind
        } else {
            Relation::Diverged
        }
    }

    /// Where `to` stands as seen from `from`, as the forge can tell.
    pub(crate) fn relation(&self, from: Rev, to: Rev) -> Relation {
        if from != to && (self.is_gone(from) || self.is_gone(to)) {
            Relation::Unknown
        } else {
            self.truly(from, to)
        }
    }

    /// Whether a path that `part` stands for differs; what cannot be told counts as changed.
    pub(crate) fn watched(&self, from: Rev, to: Rev, part: fn(Tree) -> u32) -> Watched {
        let same = part(self.tree(from)) == part(self.tree(to));
        let known = from == to || !(self.is_gone(from) || self.is_gone(to));
        if same && known { Watched::Unchanged } else { Watched::Changed }
    }
}
