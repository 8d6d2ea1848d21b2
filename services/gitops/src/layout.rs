//! Where things lie in `cluster/apps`.

use fabrique_core::id::{AppName, EnvironmentName, RelPath};

use crate::{composition, registration};

/// `apps/<app>/app.yaml`
#[must_use]
pub fn registration_of(app: &AppName) -> RelPath {
    rel(&format!("apps/{app}/{}", registration::FILE_NAME))
}

/// `apps/<app>/<environment>`
#[must_use]
pub fn directory_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("apps/{app}/{environment}"))
}

/// `apps/<app>/<environment>/composition.yaml`
#[must_use]
pub fn composition_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("apps/{app}/{environment}/{}", composition::FILE_NAME))
}

#[expect(
    clippy::expect_used,
    reason = "names are DNS labels of at most 40 characters: every such path is valid"
)]
fn rel(path: &str) -> RelPath {
    RelPath::parse(path).expect("a path of validated names")
}
