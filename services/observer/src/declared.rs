//! What an app declares at the head of its branch, and what that means for a change to it.
//!
//! A file is read once for each head, and a pin is resolved once for each head: what a commit holds stays so. What is
//! asked anew at every look is where the branches of the apps are that this one depends on, and only while something
//! is to be changed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fabrique_core::app::App;
use fabrique_core::id::{AppName, EnvironmentName, RelPath, RepoName, Revision};
use fabrique_core::relation::Relation;
use fabrique_core::view::Declared;
use fabrique_declarations::name::RevisionPrefix;
use fabrique_declarations::pin::{self, PinRefusal};
use fabrique_declarations::{
    Contract, Declaration, Declares, Finding, Judgement, Subject, Usage, Wait, circles, contract, judge,
};
use fabrique_gitops::render::{Asks, Needs};
use fabrique_gitops::{Registrations, Tree, layout};
use fabrique_ports::PortResult;
use fabrique_ports::forge::{BranchHead, ForgeFile};
use fabrique_ports::source::{FileKind, SourceFile, SourceHistory};
use futures::{StreamExt as _, stream};

use crate::apps::Apps;
use crate::gather::Observer;

/// How many apps are asked for along dependencies in search of a circle. `fabrique validate` reads all.
const FOLLOWED: usize = 256;

/// How many of them are asked for at once.
const AT_ONCE: usize = 8;

/// The declaration at one head.
#[derive(Debug)]
pub(crate) struct Read {
    declares: Declares,
    findings: Vec<Finding>,
}

/// What an app's own declaration says at its head.
#[derive(Debug)]
pub(crate) struct Own {
    /// The head, or the ancestor that it pins.
    pub(crate) target: Revision,
    /// The file.
    read: Arc<Read>,
    pin: Result<(), PinRefusal>,
    /// Why GitHub does not vouch for the target, where it has to.
    unproven: Option<String>,
}

/// How far a look goes along dependencies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To those that the app itself needs.
    Needed,
    /// To what these need, and so on, in search of a circle.
    Onwards,
}

/// What is declared of a change, and the registered apps whose declarations it waits for.
pub(crate) type Word = (Declared, BTreeSet<AppName>);

impl Own {
    /// Nothing was read, or there is nothing to be read.
    pub(crate) fn silent(head: &Revision) -> Self {
        Self { target: head.clone(), read: Read::nothing(), pin: Ok(()), unproven: None }
    }

    /// Whether the target is not simply the head.
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned().is_some()
    }

    /// Whether the head names migrations.
    pub(crate) fn names_migrations(&self) -> bool {
        self.declaration().is_some_and(|declaration| !declaration.depends_on.migrations.is_empty())
    }

    /// Whether the head declares anything that can be read.
    pub(crate) fn declares(&self) -> bool {
        self.declaration().is_some()
    }

    fn pinned(&self) -> Option<&RevisionPrefix> {
        self.declaration()
            .and_then(|declaration| declaration.revision.as_ref())
            .map(|revision| &revision.value)
    }

    fn declaration(&self) -> Option<&Declaration> {
        self.read.declaration()
    }

    /// What the app says by itself, given where its target stands as seen from what is deployed.
    pub(crate) fn word<'d>(
        &self,
        app: &AppName,
        deployed: impl IntoIterator<Item = (&'d EnvironmentName, &'d Revision, Relation)>,
    ) -> Declared {
        if let Some(refused) = refused(app, self.read.findings.iter()) {
            return refused;
        }
        if let Err(refusal) = &self.pin {
            return Declared::Refused(refusal.to_string());
        }
        if self.is_pinned()
            && let Err(refusal) = pin::admit(&self.target, deployed)
        {
            return Declared::Refused(refusal.to_string());
        }
        if self.declaration().is_some_and(|declaration| !declaration.ready.value) {
            return Declared::Waits(Wait::NotReady.to_string());
        }
        self.unproven.clone().map_or(Declared::Admitted, Declared::Waits)
    }
}

impl Read {
    fn nothing() -> Arc<Self> {
        Arc::new(Self { declares: Declares::Nothing, findings: Vec::new() })
    }

    fn wrong(finding: Finding) -> Arc<Self> {
        Arc::new(Self { declares: Declares::Unreadable, findings: vec![finding] })
    }

    fn declaration(&self) -> Option<&Declaration> {
        match &self.declares {
            Declares::All(declaration) => Some(declaration),
            Declares::Nothing | Declares::Unreadable | Declares::Misregistered => None,
        }
    }
}

impl Observer {
    /// Whether the app's declaration at `head` can be read and says `ready: true`: whoever depends on it may go on.
    ///
    /// # Errors
    /// When the forge has to be asked for the file and does not answer.
    pub async fn says_ready(&self, app: &App, head: &Revision) -> PortResult<bool> {
        let read = self.declaration(app, head).await?;
        Ok(read.declaration().is_some_and(|declaration| declaration.ready.value))
    }

    /// What the app needs of others and of the cluster by its declaration at `head`; nothing when it cannot be read.
    ///
    /// # Errors
    /// When the forge has to be asked for the file and does not answer.
    pub async fn needs(&self, app: &App, head: &Revision) -> PortResult<Option<Needs>> {
        let read = self.declaration(app, head).await?;
        Ok(needs_of(&read.declares, &declaration_of(app)))
    }

    /// What the app itself declares at `head`.
    pub(crate) async fn own(&self, app: &App, head: &Revision) -> PortResult<Own> {
        let read = self.declaration(app, head).await?;
        let pinned = read.declaration().and_then(|declaration| declaration.revision.as_ref());
        let (target, pin) = match pinned {
            None => (head.clone(), Ok(())),
            Some(pinned) => match self.pinned(&app.source.repo, head, &pinned.value).await? {
                Ok(target) => (target, Ok(())),
                Err(refusal) => (head.clone(), Err(refusal)),
            },
        };
        let unproven = self.unproven(app, &target).await?;
        Ok(Own { target, read, pin, unproven })
    }

    /// What is declared against a change that the app by itself admits: by the contract, and by the apps that it
    /// depends on.
    pub(crate) async fn word_of_others(
        &self,
        (app, apps): (&App, &Apps),
        head: &Revision,
        own: &Own,
        reach: Reach,
    ) -> PortResult<Word> {
        let Some(declaration) = own.declaration() else { return Ok(Word::default()) };
        let contract = match &apps.contract {
            Ok(Some(contract)) => contract,
            Ok(None) => return Ok((Declared::Refused(without_contract()), BTreeSet::new())),
            Err(findings) => {
                let word = refused(&app.name, findings.iter());
                return Ok((word.unwrap_or_default(), BTreeSet::new()));
            }
        };
        let mut known = unread_all(&apps.registrations);
        if let Some(subject) = known.get_mut(&app.name) {
            subject.declares = own.read.declares.clone();
        }
        // In a sweep the answers are shared by all; otherwise within this look.
        let asking = if self.round.is_some() { self.clone() } else { self.for_one_round() };
        let mut seen = BTreeSet::from([app.name.clone()]);
        let front = needed_by(declaration, &mut seen, apps);
        for (name, read) in asking.read_all(&front, (app, head)).await {
            let read = read?;
            set(&mut known, name, &read);
        }
        let mut judgement = judge(contract, contract::FILE_NAME, &known, &Usage::default());
        if reach == Reach::Onwards && judgement.of(&app.name).next().is_none() {
            asking.follow(front, seen, &mut known, (app, apps, head)).await;
            judgement.findings = circles(&known);
        }
        Ok(word_of(&app.name, &judgement))
    }

    /// Reads what those in `front` need, and so on. It matters only where it leads back, so that one of which this cannot
    /// be asked stops nobody here: whoever depends on it is told.
    async fn follow<'a>(
        &self,
        mut front: Vec<&'a App>,
        mut seen: BTreeSet<AppName>,
        known: &mut BTreeMap<AppName, Subject>,
        (app, apps, head): (&App, &'a Apps, &Revision),
    ) {
        loop {
            front = beyond(&front, known, &mut seen, apps);
            if front.is_empty() {
                break;
            }
            for (name, read) in self.read_all(&front, (app, head)).await {
                match read {
                    Ok(read) => set(known, name, &read),
                    Err(error) => {
                        tracing::debug!(app = %app.name, %name, %error, "its dependencies are not known");
                    }
                }
            }
        }
    }

    /// The declarations of other apps at their heads now, a few at once.
    async fn read_all<'a>(
        &self,
        others: &[&'a App],
        from: (&App, &Revision),
    ) -> Vec<(&'a AppName, PortResult<Arc<Read>>)> {
        // A plain loop: closures over borrowed apps could not be sent to another thread.
        let mut reads = Vec::with_capacity(others.len());
        for other in others {
            reads.push(self.newest(other, from));
        }
        let read: Vec<_> = stream::iter(reads).buffered(AT_ONCE).collect().await;
        others.iter().map(|other| &other.name).zip(read).collect()
    }

    /// The declaration of another app at its head now. Apps of one branch share the head that was asked for already.
    async fn newest(&self, other: &App, (app, head): (&App, &Revision)) -> PortResult<Arc<Read>> {
        if other.source.declaration.is_none() {
            return Ok(Read::nothing());
        }
        if other.source.repo == app.source.repo && other.source.branch == app.source.branch {
            return self.declaration(other, head).await;
        }
        match self.head(&other.source.repo, &other.source.branch).await? {
            BranchHead::At(head) => self.declaration(other, &head).await,
            BranchHead::NoBranch | BranchHead::NoRepository => {
                let what = format!("{} has no branch {}", other.source.repo, other.source.branch);
                let registration = layout::registration_of(&other.name).to_string();
                Ok(Read::wrong(Finding::of_file(registration, what, "correct spec.source")))
            }
        }
    }

    async fn declaration(&self, app: &App, head: &Revision) -> PortResult<Arc<Read>> {
        let Some(path) = &app.source.declaration else { return Ok(Read::nothing()) };
        let repo = &app.source.repo;
        if let Some(read) = self.known.declaration(repo, head, path) {
            return Ok(read);
        }
        let is_absent = self.round.as_ref().is_some_and(|round| round.is_absent(repo, head, path));
        let file = if is_absent { None } else { self.forge.file(repo, head, path).await? };
        let (declares, findings) = match &file {
            None => declares(app, head, None),
            Some(ForgeFile::Content(content)) => declares(app, head, Some(content)),
            Some(ForgeFile::Elsewhere) => declares_elsewhere(app),
        };
        let read = Arc::new(Read { declares, findings });
        if file.is_some() {
            self.known.learn_declaration(repo, head, path, &read);
        } else if let Some(round) = &self.round {
            // Kept no longer where it is not there: the forge answers so as well when it may not be read.
            round.learn_absent(repo, head, path);
        }
        Ok(read)
    }

    async fn pinned(
        &self,
        repo: &RepoName,
        head: &Revision,
        prefix: &RevisionPrefix,
    ) -> PortResult<Result<Revision, PinRefusal>> {
        if let Some(resolved) = self.known.pin(repo, head, prefix) {
            return Ok(resolved);
        }
        let ancestors = self.source.ancestors(repo, head, prefix.as_str()).await?;
        let resolved = pin::resolve(prefix, &ancestors);
        self.known.learn_pin(repo, head, prefix, &resolved);
        Ok(resolved)
    }
}

/// The contract of a tree of `cluster/apps`, if there is one.
///
/// # Errors
/// Everything that is wrong with it.
pub fn contract_of(tree: &Tree) -> Result<Option<Contract>, Vec<Finding>> {
    let unreadable =
        |why: String| vec![Finding::of_file(contract::FILE_NAME, why, "replace the symlink by a file")];
    let path = RelPath::parse(contract::FILE_NAME).map_err(|error| unreadable(error.to_string()))?;
    match tree.read(&path) {
        Ok(Some(bytes)) => Contract::parse(contract::FILE_NAME, bytes).map(Some),
        Ok(None) => Ok(None),
        Err(refusal) => Err(unreadable(refusal.to_string())),
    }
}

fn word_of(app: &AppName, judgement: &Judgement) -> Word {
    let waits = judgement.waits.get(app).map(Vec::as_slice).unwrap_or_default();
    let awaits = waits.iter().filter_map(|wait| match wait {
        // A name that nobody registered may be any: what is noted there would stay for good.
        Wait::NotReady | Wait::DependencyAbsent(_) => None,
        Wait::DependencyNotReady(other)
        | Wait::DependencyUndeclared(other)
        | Wait::DependencyMisregistered(other) => Some(other.clone()),
    });
    let waiting = || {
        let told: Vec<String> = waits.iter().map(ToString::to_string).collect();
        let only_slips = waits.iter().all(|wait| matches!(wait, Wait::DependencyMisregistered(_)));
        let declared = if only_slips { Declared::Suspended } else { Declared::Waits };
        (!told.is_empty()).then(|| declared(told.join(", and ")))
    };
    let declared = refused(app, judgement.of(app)).or_else(waiting).unwrap_or_default();
    (declared, awaits.collect())
}

/// The first finding, and how many there are more.
fn refused<'f>(app: &AppName, findings: impl Iterator<Item = &'f Finding>) -> Option<Declared> {
    let findings: Vec<&Finding> = findings.collect();
    let (first, more) = findings.split_first()?;
    Some(Declared::Refused(match more.len() {
        0 => first.to_string(),
        more => format!("{first}; and {more} more, told by `fabrique validate {app}`"),
    }))
}

fn without_contract() -> String {
    let what = "is missing in cluster/apps, and the app declares what it needs of it";
    let remedy = "add it, docs/contract.yaml.example shows how";
    Finding::of_file(contract::FILE_NAME, what, remedy).to_string()
}

/// What an app declares by the content of its file at `head`, and what is wrong with that by itself; without content
/// the file is not there.
#[must_use]
pub fn declares(app: &App, head: &Revision, content: Option<&[u8]>) -> (Declares, Vec<Finding>) {
    let file = declaration_of(app);
    let Some(content) = content else {
        let what = format!("is not there at {} of {}", head.short(), app.source.branch);
        let remedy = "add it, or correct source.declaration of the registration";
        return (Declares::Unreadable, vec![Finding::of_file(file, what, remedy)]);
    };
    match Declaration::parse(&file, content) {
        Ok(declaration) => (Declares::All(Box::new(declaration)), Vec::new()),
        Err(findings) => (Declares::Unreadable, findings),
    }
}

/// What is needed by a declaration, which findings call `file`; nothing when it cannot be read.
#[must_use]
pub fn needs_of(declares: &Declares, file: &str) -> Option<Needs> {
    match declares {
        Declares::Nothing => Some(Needs { asks: Some(Asks::default()), ..Needs::default() }),
        Declares::Unreadable | Declares::Misregistered => None,
        Declares::All(declaration) => {
            let others = declaration.depends_on.code_locations.iter();
            Some(Needs {
                apps: others.map(|needed| needed.value.clone()).collect(),
                asks: Some(Asks::of(file, declaration)),
                ..Needs::default()
            })
        }
    }
}

/// What the app needs by its declaration at `revision`, out of the history of its source; nothing when it cannot be read.
///
/// # Errors
/// When the source cannot be read.
pub async fn needs_at(
    source: &dyn SourceHistory,
    app: &App,
    revision: &Revision,
) -> PortResult<Option<Needs>> {
    let Some(path) = &app.source.declaration else { return Ok(needs_of(&Declares::Nothing, "")) };
    let (declares, _) = match source.read_file(&app.source.repo, revision, path).await? {
        None => declares(app, revision, None),
        Some(SourceFile { kind: FileKind::Regular | FileKind::Executable, content, .. }) => {
            declares(app, revision, Some(&content))
        }
        Some(SourceFile { kind: FileKind::Symlink | FileKind::Submodule, .. }) => declares_elsewhere(app),
    };
    Ok(needs_of(&declares, &declaration_of(app)))
}

/// The same of a file that is a symbolic link or a submodule, and is not followed.
#[must_use]
pub fn declares_elsewhere(app: &App) -> (Declares, Vec<Finding>) {
    let what = "is a symlink or a submodule";
    (Declares::Unreadable, vec![Finding::of_file(declaration_of(app), what, "write the file itself")])
}

/// What findings call the declaration of an app.
#[must_use]
pub fn declaration_of(app: &App) -> String {
    match &app.source.declaration {
        Some(path) => format!("{}:{path}", app.source.repo),
        None => layout::registration_of(&app.name).to_string(),
    }
}

/// An app as it is judged, with what it declares.
#[must_use]
pub fn subject(app: &App, declares: Declares) -> Subject {
    Subject {
        environments: app.environments.iter().map(|environment| environment.name.clone()).collect(),
        registration: layout::registration_of(&app.name).to_string(),
        file: declaration_of(app),
        declares,
    }
}

/// An app whose registration cannot be used, as those are judged that depend on it.
#[must_use]
pub fn misregistered(app: &AppName) -> Subject {
    let registration = layout::registration_of(app).to_string();
    let file = registration.clone();
    Subject { environments: Vec::new(), registration, file, declares: Declares::Misregistered }
}

/// All apps that have a registration, right or wrong, before any declaration is read.
fn unread_all(registrations: &Registrations) -> BTreeMap<AppName, Subject> {
    let right = registrations.apps.values().map(|app| (app.name.clone(), unread(app)));
    right.chain(registrations.wrong.keys().map(|app| (app.clone(), misregistered(app)))).collect()
}

/// The registered apps that a declaration needs and that were not seen yet.
fn needed_by<'a>(declaration: &Declaration, seen: &mut BTreeSet<AppName>, apps: &'a Apps) -> Vec<&'a App> {
    let needed = declaration.depends_on.code_locations.iter();
    let registered = needed.filter_map(|needed| apps.registrations.apps.get(&needed.value));
    registered.filter(|app| seen.insert(app.name.clone())).collect()
}

/// The apps that those in `front` need and that were not seen yet, as many as may still be asked for.
fn beyond<'a>(
    front: &[&App],
    known: &BTreeMap<AppName, Subject>,
    seen: &mut BTreeSet<AppName>,
    apps: &'a Apps,
) -> Vec<&'a App> {
    let room = FOLLOWED.saturating_sub(seen.len());
    let read = front.iter().filter_map(|other| read_of(known, &other.name));
    read.flat_map(|declaration| needed_by(declaration, seen, apps)).take(room).collect()
}

fn read_of<'s>(known: &'s BTreeMap<AppName, Subject>, app: &AppName) -> Option<&'s Declaration> {
    match known.get(app).map(|subject| &subject.declares) {
        Some(Declares::All(declaration)) => Some(declaration),
        Some(Declares::Nothing | Declares::Unreadable | Declares::Misregistered) | None => None,
    }
}

fn set(known: &mut BTreeMap<AppName, Subject>, app: &AppName, read: &Read) {
    if let Some(subject) = known.get_mut(app) {
        subject.declares = read.declares.clone();
    }
}

/// An app whose declaration matters to nobody yet.
fn unread(app: &App) -> Subject {
    let declares = if app.source.declaration.is_some() { Declares::Unreadable } else { Declares::Nothing };
    subject(app, declares)
}

#[cfg(test)]
mod tests;
