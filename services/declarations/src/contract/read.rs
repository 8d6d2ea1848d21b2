//! Reading a contract.

use std::collections::BTreeMap;

use fabrique_yaml::{Fields, Node, Reader, did_you_mean};
use url::Url;

use super::{
    APP, BlockStorage, Contract, Database, Endpoints, Form, ImageField, MAX_CLASSES, MAX_ENVIRONMENTS,
    MAX_KEYS, MAX_NAMES, MAX_PLACEHOLDERS, MAX_VERSIONS, ObjectStorage, Offer, Place, Placeholder, Room,
    Secret, SecretSource,
};
use crate::name::ObjectName;
use crate::read::{Unit, amount, list, named, word};
use crate::{At, Quantity};

pub(super) const REGISTRY: &str = r"^[a-z0-9]([-.a-z0-9]*[a-z0-9])?(:[0-9]{1,5})?$";
pub(super) const PLACEHOLDER: &str = r"^__([A-Z0-9]+_)*<APP>(_[A-Z0-9]+)*__$";
pub(super) const PERCENT: &str = r"^[0-9]{1,2}%$";

const FIELDS: [&str; 9] = [
    "apiVersion",
    "kind",
    "version",
    "accepts",
    "endpoints",
    "databases",
    "secrets",
    "environments",
    "placeholders",
];

pub(super) fn contract(reader: &Reader<'_>, document: &Node) -> Option<Contract> {
    let root = reader.mapping(document, "the contract", &FIELDS)?;
    root.constant("apiVersion", "fabrique/v1");
    root.constant("kind", "Contract");
    let version = root.parsed("version");
    let accepts = root.required("accepts").and_then(|node| {
        let accepts: Vec<At<_>> = list(&root, "accepts", "accepts", MAX_VERSIONS)?;
        let accepts: Vec<_> = accepts.into_iter().map(|version| version.value).collect();
        if let Some(version) = version.filter(|version| !accepts.contains(version)) {
            let remedy = format!("add {version}, or nobody could write against this contract");
            reader.report(node, format!("accepts does not name version {version}"), remedy);
        }
        Some(accepts)
    });
    let endpoints = root.required("endpoints").and_then(|node| endpoints(reader, node));
    let databases = named(&root, "databases", "databases", MAX_NAMES, database);
    let secrets = named(&root, "secrets", "secrets", MAX_NAMES, secret);
    let environments = match root.required("environments") {
        Some(_) => named(&root, "environments", "environments", MAX_ENVIRONMENTS, offer),
        None => None,
    };
    let placeholders = placeholders(&root);
    Some(Contract {
        version: version?,
        accepts: accepts?,
        endpoints: endpoints?,
        databases: databases?,
        secrets: secrets?,
        environments: environments?,
        placeholders: placeholders?,
    })
}

fn endpoints(reader: &Reader<'_>, node: &Node) -> Option<Endpoints> {
    let fields = reader.mapping(node, "endpoints", &["gitea", "argocd", "registry", "nats"])?;
    let gitea = endpoint(&fields, "gitea", &["http", "https"]);
    let argocd = endpoint(&fields, "argocd", &["http", "https"]);
    let registry = fields.required("registry").and_then(|node| {
        let text = reader.text(node, "endpoints.registry")?;
        let right = regex::Regex::new(REGISTRY).is_ok_and(|rule| rule.is_match(text));
        if !right {
            let what = format!("endpoints.registry: {text:?} is not how images name a registry");
            reader.report(node, what, "write host:port, like registry:80");
        }
        right.then(|| At::node(text.to_owned(), node))
    });
    let nats = endpoint(&fields, "nats", &["nats", "tls"]);
    Some(Endpoints { gitea: gitea?, argocd: argocd?, registry: registry?, nats: nats? })
}

fn endpoint(fields: &Fields<'_>, name: &str, schemes: &[&str]) -> Option<At<Url>> {
    let node = fields.required(name)?;
    let reader = fields.reader;
    let text = reader.text(node, name)?;
    let url = text.parse::<Url>().ok().filter(|url| schemes.contains(&url.scheme()) && url.host().is_some());
    let Some(url) = url else {
        let remedy = format!(
            "write {}",
            schemes.iter().map(|s| format!("{s}://host:port")).collect::<Vec<_>>().join(" or ")
        );
        reader.report(node, format!("endpoints.{name}: not such an address"), remedy);
        return None;
    };
    if !url.username().is_empty() || url.password().is_some() {
        reader.report(
            node,
            format!("endpoints.{name} carries credentials"),
            "remove them: everybody reads this file",
        );
        return None;
    }
    Some(At::node(url, node))
}

fn database(reader: &Reader<'_>, node: &Node, what: &str) -> Option<Database> {
    let fields = reader.mapping(node, what, &["namespace", "cluster", "owner"])?;
    let (namespace, cluster, owner) =
        (fields.parsed("namespace"), fields.parsed("cluster"), fields.optional("owner"));
    Some(Database { namespace: namespace?, cluster: cluster?, owner: owner? })
}

fn secret(reader: &Reader<'_>, node: &Node, what: &str) -> Option<Secret> {
    let fields = reader.mapping(node, what, &["namespace", "keys", "from"])?;
    let namespace = fields.parsed("namespace");
    let keys = fields.required("keys").and_then(|node| {
        let keys: Vec<At<_>> = list(&fields, "keys", &format!("{what}.keys"), MAX_KEYS)?;
        if keys.is_empty() {
            reader.report(node, format!("{what}.keys is empty"), "name the keys that apps find");
        }
        Some(keys.into_iter().map(|key| key.value).collect())
    });
    let from = match fields.get("from") {
        None => Some(None),
        Some(node) => {
            reader.mapping(node, &format!("{what}.from"), &["namespace", "secret"]).and_then(|from| {
                let (namespace, secret) = (from.parsed("namespace"), from.parsed("secret"));
                Some(Some(SecretSource { namespace: namespace?, secret: secret? }))
            })
        }
    };
    Some(Secret { namespace: namespace?, keys: keys?, from: from? })
}

fn offer(reader: &Reader<'_>, node: &Node, what: &str) -> Option<Offer> {
    let fields = reader.mapping(node, what, &["cpu", "memory", "block", "object"])?;
    let limit = |name: &str, unit| match fields.get(name) {
        None => Some(None),
        Some(node) => {
            room(reader, node, &format!("{what}.{name}"), unit).map(|room| Some(At::node(room, node)))
        }
    };
    let (cpu, memory) = (limit("cpu", Unit::Cores), limit("memory", Unit::Bytes));
    let block = match fields.get("block") {
        None => Some(None),
        Some(node) => block(reader, node, &format!("{what}.block")).map(Some),
    };
    let object = match fields.get("object") {
        None => Some(None),
        Some(node) => object(reader, node, &format!("{what}.object")).map(Some),
    };
    Some(Offer { cpu: cpu?, memory: memory?, block: block?, object: object? })
}

fn block(reader: &Reader<'_>, node: &Node, what: &str) -> Option<BlockStorage> {
    let fields = reader.mapping(node, what, &["defaultClass", "classes"])?;
    let classes = classes(&fields, what);
    let default_class = default_class(&fields, what, classes.as_ref());
    Some(BlockStorage { default_class: default_class?, classes: classes? })
}

fn object(reader: &Reader<'_>, node: &Node, what: &str) -> Option<ObjectStorage> {
    let fields = reader.mapping(node, what, &["defaultClass", "defaultSize", "classes"])?;
    let classes = classes(&fields, what);
    let default_class = default_class(&fields, what, classes.as_ref());
    let default_size = fields
        .required("defaultSize")
        .and_then(|node| amount(reader, node, &format!("{what}.defaultSize"), Unit::Bytes));
    Some(ObjectStorage {
        default_class: default_class?,
        default_size: default_size?.value,
        classes: classes?,
    })
}

type Classes = BTreeMap<ObjectName, At<Option<Room>>>;

fn classes(fields: &Fields<'_>, what: &str) -> Option<Classes> {
    fields.required("classes")?;
    named(fields, "classes", &format!("{what}.classes"), MAX_CLASSES, |reader, node, what| {
        if node.is_null() { Some(None) } else { room(reader, node, what, Unit::Bytes).map(Some) }
    })
}

fn default_class(fields: &Fields<'_>, what: &str, classes: Option<&Classes>) -> Option<ObjectName> {
    let node = fields.required("defaultClass")?;
    let class: ObjectName = fields.reader.value(node, &format!("{what}.defaultClass"))?;
    let known: Vec<&str> = classes?.keys().map(ObjectName::as_str).collect();
    if !known.contains(&class.as_str()) {
        let remedy = did_you_mean(class.as_str(), &known)
            .map_or_else(|| "add it to classes".to_owned(), |near| format!("did you mean {near}?"));
        fields.reader.report(node, format!("{what}.classes has no {class}"), remedy);
    }
    Some(class)
}

fn room(reader: &Reader<'_>, node: &Node, what: &str, unit: Unit) -> Option<Room> {
    let fields = reader.mapping(node, what, &["capacity", "reserve"])?;
    let capacity =
        fields.required("capacity").and_then(|node| amount(reader, node, &format!("{what}.capacity"), unit));
    let reserve = match fields.get("reserve") {
        None => Some(Quantity::default()),
        Some(node) => reserve(reader, node, &format!("{what}.reserve"), unit, capacity.as_ref()),
    };
    let (capacity, reserve) = (capacity?.value, reserve?);
    if reserve >= capacity {
        reader.report(node, format!("{what}: the reserve leaves nothing"), "lower it, or raise the capacity");
    }
    Some(Room { capacity, reserve })
}

fn reserve(
    reader: &Reader<'_>,
    node: &Node,
    what: &str,
    unit: Unit,
    capacity: Option<&At<Quantity>>,
) -> Option<Quantity> {
    let text = reader.text(node, what)?;
    let Some(number) = text.strip_suffix('%') else {
        return amount(reader, node, what, unit).map(|amount| amount.value);
    };
    match number.parse::<u8>().ok().filter(|percent| *percent < 100 && number.len() <= 2) {
        Some(percent) => Some(capacity?.value.percent(percent)),
        None => {
            reader.report(node, format!("{what}: {text:?} is no share"), "write 0% to 99%, or an amount");
            None
        }
    }
}

fn placeholders(root: &Fields<'_>) -> Option<Vec<Placeholder>> {
    let Some(node) = root.get("placeholders") else { return Some(Placeholder::both()) };
    let reader = root.reader;
    let (mut all, mut right) = (Vec::<Placeholder>::new(), true);
    for item in reader.list(node, "placeholders", MAX_PLACEHOLDERS) {
        let Some(placeholder) = placeholder(reader, item) else {
            right = false;
            continue;
        };
        if all.iter().any(|other| other.name == placeholder.name || other.place == placeholder.place) {
            reader.report(item, "two placeholders have one name or one place", "remove one");
        }
        all.push(placeholder);
    }
    right.then_some(all)
}

fn placeholder(reader: &Reader<'_>, node: &Node) -> Option<Placeholder> {
    let fields = reader.mapping(node, "a placeholder", &["name", "form", "place"])?;
    let name = fields.required("name").and_then(|node| {
        let text = reader.text(node, "placeholders.name")?;
        let right = regex::Regex::new(PLACEHOLDER).is_ok_and(|rule| rule.is_match(text));
        if !right {
            let what = format!("placeholders.name: {text:?} is not such a name");
            reader.report(node, what, format!("write it like __{APP}_IMAGE__"));
        }
        right.then(|| text.to_owned())
    });
    let forms = [("digest", Form::Digest), ("reference", Form::Reference)];
    let form = fields.required("form").and_then(|node| word(reader, node, "placeholders.form", &forms));
    let place = fields.required("place").and_then(|node| place(reader, node));
    if let (Some(Form::Reference), Some(Place::Images(_))) = (form, &place) {
        reader.report(node, "images[].digest takes a digest only", "write form: digest");
    }
    Some(Placeholder { name: name?, form: form?, place: place? })
}

fn place(reader: &Reader<'_>, node: &Node) -> Option<Place> {
    let fields = reader.mapping(node, "placeholders.place", &["images", "env"])?;
    match (fields.get("images"), fields.get("env")) {
        (Some(field), None) => {
            word(reader, field, "placeholders.place.images", &[("digest", ImageField::Digest)])
                .map(Place::Images)
        }
        (None, Some(variable)) => reader.value(variable, "placeholders.place.env").map(Place::Env),
        (Some(_), Some(_)) | (None, None) => {
            reader.report(
                node,
                "a place is one of images and env",
                "write images: digest, or env: and a variable",
            );
            None
        }
    }
}
