//! Amounts in the form that the API wants.

use fabrique_core::quantity::{Bytes, Millicores};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

/// An amount that Kubernetes knows.
pub(crate) trait Amount {
    /// The amount in Kubernetes' own words.
    fn quantity(self) -> Quantity;
}

impl Amount for Bytes {
    fn quantity(self) -> Quantity {
        Quantity(self.to_string())
    }
}

impl Amount for Millicores {
    fn quantity(self) -> Quantity {
        Quantity(self.to_string())
    }
}
