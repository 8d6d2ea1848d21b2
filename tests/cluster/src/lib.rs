//! The manifests in `k8s/`, as tests and whoever installs them see them: rendered, filled in, and partly generated.
//!
//! [`manifests`] renders overlays and components with the kustomize that Argo CD uses too; [`generated`] makes the
//! files that follow from lists and from code; [`image`] brings the image that they run, and [`source`] the same from
//! nothing but its source. What an installation *does* is not known here: that is for scenarios.

pub mod generated;
pub mod image;
pub mod manifests;
pub mod source;
pub mod turn;
