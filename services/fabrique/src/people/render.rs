//! `render`: the files that Argo CD reads, told or written.

use std::sync::Arc;

use fabrique_git::Checkout;
use fabrique_gitops::render::APPLY;
use fabrique_gitops::{Rules, layout};
use fabrique_operator::declared::Ports;
use fabrique_operator::render::{self, Difference, Rendered};
use fabrique_operator::seed::guard;
use fabrique_operator::{Exit, OperatorError};

use crate::cli::Render;
use crate::people::agreement;
use crate::people::console::{Console, remark};
use crate::people::trouble::Complaint;
use crate::people::validate;
use crate::people::words::count;
use crate::wiring::Adapters;

/// Renders `cluster/apps`, or a checkout of it into which what differs is written unless it is only checked.
pub(crate) async fn render(console: Console, adapters: &Adapters, wanted: &Render) -> anyhow::Result<Exit> {
    let Some(settings) = adapters.config.render_settings() else {
        let remedy = "list where environments are: { environment: prod, namespaces: [apps] }";
        return Err(Complaint::usage(format!("render.destinations: not set; {remedy}")).into());
    };
    let ports = Ports { forge: Arc::clone(&adapters.forge) as _, source: Arc::clone(&adapters.source) as _ };
    let rendered = match &wanted.path {
        None => render::live(&adapters.apps, &ports, &settings).await?,
        Some(root) => {
            let rules = Rules { registries: adapters.config.registry.allowed.clone() };
            let rendered = render::directory(root, &rules, &ports, &settings).await?;
            if wanted.remove
                && !rendered.stale.is_empty()
                && !agreed(console, adapters, wanted, &rendered).await?
            {
                remark("not agreed: nothing was written");
                return Ok(Exit::Findings);
            }
            if !wanted.check {
                render::write(root, &rendered, wanted.remove)?;
            }
            rendered
        }
    };
    if console.is_json() {
        console.json(&rendered)?;
    } else {
        print(console, wanted, &rendered)?;
    }
    Ok(rendered.exit(wanted.check, wanted.remove))
}

/// Whether what is stale may be removed: from a checkout that tells what is gone, when a person says so who saw the list.
async fn agreed(
    console: Console,
    adapters: &Adapters,
    wanted: &Render,
    rendered: &Rendered,
) -> anyhow::Result<bool> {
    let Some(root) = &wanted.path else { return Ok(false) };
    render::admit_removal(root)?;
    let left_out = match Checkout::of(&adapters.git, root, layout::APPS).await? {
        Checkout::Whole => None,
        Checkout::Part(file) => Some(format!("is a sparse checkout, which lacks {file}")),
        Checkout::Unknown => Some("is no git checkout".to_owned()),
    };
    if let Some(why) = left_out {
        return Err(OperatorError::PartOfApps { path: root.display().to_string(), why }.into());
    }
    if wanted.yes {
        return Ok(true);
    }
    if !agreement::can_be_had(console) {
        let remedy = "say --yes, or leave --remove out to see what would be removed";
        return Err(Complaint::usage(format!("nobody can be asked here; {remedy}")).into());
    }
    for file in &rendered.stale {
        remark(&format!("{file}: would be removed, and everything that it deployed once this is pushed"));
    }
    Ok(guard::agrees(&agreement::answer("Remove? yes or oui: ")?, None))
}

fn print(console: Console, wanted: &Render, rendered: &Rendered) -> anyhow::Result<()> {
    let written = wanted.path.is_some() && !wanted.check;
    for Difference { file, new, lines, .. } in &rendered.differences {
        let what = match (written, new) {
            (true, _) => "written",
            (false, true) => "is missing",
            (false, false) => "differs",
        };
        console.line(&format!("{file}: {what}"))?;
        for line in lines {
            console.line(&format!("  {line}"))?;
        }
        if *file == layout::root() {
            console.line(&format!("  {APPLY}"))?;
        }
    }
    for held in &rendered.withheld {
        console.line(&format!("{}: not rendered: {}", held.file, held.why))?;
    }
    for file in &rendered.stale {
        let what = match written && wanted.remove {
            true => "removed; Argo CD removes everything that it deployed once this is pushed",
            false => {
                "nothing registers it any more; --path DIR --remove removes it, and so everything that it deployed"
            }
        };
        console.line(&format!("{file}: {what}"))?;
    }
    for file in &rendered.kept {
        let what =
            "kept: no app that is deployed asks for it; to give it up, remove the file, then the resource";
        console.line(&format!("{file}: {what}"))?;
    }
    validate::findings(console, &rendered.findings)?;
    let (files, differ) = (count(rendered.files, "file"), rendered.differences.len());
    Ok(console.line(&format!(
        "{files}, {differ} {}, {}",
        if written { "written" } else { "not as rendered" },
        count(rendered.findings.len(), "finding")
    ))?)
}
