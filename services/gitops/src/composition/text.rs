//! The canonical spelling of a composition.

use fabrique_core::app::{Composition, Hold, ImageState, InfraState};
use fabrique_yaml::flow_text;

/// One field of a channel, spelled for a flow mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Spelled {
    /// Nothing.
    Null,
    /// A text, and how it is written where there was none.
    Text(String, String),
    /// A mapping, as written.
    Mapping(String),
}

impl Spelled {
    pub(super) fn written(&self) -> &str {
        match self {
            Spelled::Null => "null",
            Spelled::Text(_, written) | Spelled::Mapping(written) => written,
        }
    }

    fn text(text: Option<&str>) -> Self {
        text.map_or(Spelled::Null, |text| Spelled::Text(text.to_owned(), flow_text(text)))
    }

    fn hold(hold: Option<&Hold>) -> Self {
        hold.map_or(Spelled::Null, |Hold { by, reason, since, until }| {
            let optional =
                |text: &Option<String>| text.as_deref().map_or_else(|| "null".to_owned(), flow_text);
            Spelled::Mapping(format!(
                "{{ by: {}, reason: {}, since: {}, until: {} }}",
                flow_text(by),
                flow_text(reason),
                optional(since),
                optional(until)
            ))
        })
    }
}

/// The fields of a channel, in canonical order.
pub(super) type Fields = Vec<(&'static str, Spelled)>;

pub(super) fn image_fields(image: &ImageState) -> Fields {
    let deployed = image.deployed.as_ref();
    // Quoted always, as people know it from manifests; the rules of plain scalars would not ask for it.
    let digest = deployed.map(|d| d.digest.as_str());
    let digest = digest.map_or(Spelled::Null, |text| Spelled::Text(text.to_owned(), format!("\"{text}\"")));
    vec![
        ("repository", Spelled::text(deployed.map(|d| d.repository.as_str()))),
        ("digest", digest),
        ("revision", Spelled::text(deployed.map(|d| d.revision.as_str()))),
        ("version", Spelled::text(deployed.and_then(|d| d.version.as_deref()))),
        ("build", Spelled::text(deployed.and_then(|d| d.build.as_ref().map(|b| b.as_str())))),
        ("hold", Spelled::hold(image.hold.as_ref())),
    ]
}

pub(super) fn infra_fields(infra: &InfraState) -> Fields {
    if let Some(chart) = &infra.chart {
        return vec![
            ("repo", Spelled::text(Some(&chart.repo))),
            ("chart", Spelled::text(Some(&chart.name))),
            ("version", Spelled::text(Some(&chart.version))),
            ("hold", Spelled::hold(infra.hold.as_ref())),
        ];
    }
    let deployed = infra.deployed.as_ref();
    let repo = deployed.map(|d| d.overlay.repo.to_string());
    vec![
        ("repo", Spelled::text(repo.as_deref())),
        ("path", Spelled::text(deployed.map(|d| d.overlay.path.as_str()))),
        ("revision", Spelled::text(deployed.map(|d| d.revision.as_str()))),
        ("hold", Spelled::hold(infra.hold.as_ref())),
    ]
}

pub(super) fn flow(fields: &Fields) -> String {
    let pairs: Vec<String> =
        fields.iter().map(|(key, value)| format!("{key}: {}", value.written())).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// A composition as fabrique writes one that does not exist yet.
#[must_use]
pub fn render(composition: &Composition) -> String {
    format!(
        "apiVersion: fabrique/v1\nkind: Composition\nmetadata: {{ app: {}, environment: {} }}\nimage: {}\ninfra: {}\n",
        flow_text(composition.app.as_str()),
        flow_text(composition.environment.as_str()),
        flow(&image_fields(&composition.image)),
        flow(&infra_fields(&composition.infra)),
    )
}
