//! The language in which a binding says where its value stands.
//!
//! ```text
//! images[name=registry:80/citation-dagster].digest
//! spec.template.spec.containers[0].env[name=DAGSTER_CURRENT_IMAGE].value
//! metadata.annotations["argocd.argoproj.io/sync-wave"]
//! spec.source.kustomize.images[~registry:80/citation-dagster]
//! (kind=Deployment,metadata.name=citation)spec.template.spec.containers[name=grpc].image
//! (1)spec.replicas
//! ```
//!
//! | part | meaning |
//! | --- | --- |
//! | `key`, `.key` | the value under a key without `.`, brackets or quotes |
//! | `["any key"]` | the value under any key; `\"` and `\\` are escapes |
//! | `[0]` | an item of a list, from 0 |
//! | `[key=value]` | the item whose `key` (which may be `a.b`) is `value`; `value` may be in double quotes |
//! | `[~image]` | the item that is an image reference to `image`, whatever its tag or digest, also as `old=new` |
//! | `(1)` first | the document of that index, from 0 |
//! | `(key=value,…)` first | the documents in which each `key` (which may be `a.b`) is `value` |
//!
//! Without a document selector every document of the file is searched. A path leads to exactly one scalar
//! or it is an error.

mod resolve;
mod syntax;
mod trace;

pub use resolve::{PathError, resolve};
pub use syntax::{Path, PathSyntaxError};
pub use trace::path_to;
