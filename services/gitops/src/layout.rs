//! Where things lie in `cluster/apps`.

use fabrique_core::id::{AppName, EnvironmentName, RelPath};

use crate::{composition, placeholder, registration};

/// `apps/<app>/app.yaml`
#[must_use]
pub fn registration_of(app: &AppName) -> RelPath {
    rel(&format!("apps/{app}/{}", registration::FILE_NAME))
}

/// `apps/<app>`, where everything of an app is
#[must_use]
pub fn home_of(app: &AppName) -> RelPath {
    rel(&format!("apps/{app}"))
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

/// `apps/<app>/<environment>/placeholders.yaml`
#[must_use]
pub fn placeholders_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("apps/{app}/{environment}/{}", placeholder::FILE_NAME))
}

/// `applications`, which the root Application watches
#[must_use]
pub fn applications() -> RelPath {
    rel("applications")
}

/// `migrations/<environment>/<app>`
#[must_use]
pub fn migrations_folder(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("migrations/{environment}/{app}"))
}

/// `migrations/<environment>/<app>/migrations.yaml`
#[must_use]
pub fn migrations_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("migrations/{environment}/{app}/migrations.yaml"))
}

/// What Argo CD calls the Application of an environment
#[must_use]
pub fn application_name(app: &AppName, environment: &EnvironmentName) -> String {
    format!("{app}-{environment}")
}

/// `applications/<app>-<environment>.yaml`
#[must_use]
pub fn application_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("applications/{}.yaml", application_name(app, environment)))
}

/// `<kind>/<environment>`, where what the cluster provides lies
#[must_use]
pub fn provided_folder(kind: &str, environment: &EnvironmentName) -> RelPath {
    rel(&format!("{kind}/{environment}"))
}

/// `<kind>/<environment>/<name>.yaml`
#[must_use]
pub fn provided_file(kind: &str, environment: &EnvironmentName, name: &str) -> RelPath {
    rel(&format!("{kind}/{environment}/{name}.yaml"))
}

/// What Argo CD calls the Application of what is provided
#[must_use]
pub fn provided_name(kind: &str, environment: &EnvironmentName) -> String {
    format!("{kind}-{environment}")
}

/// `applications/<kind>-<environment>.yaml`
#[must_use]
pub fn provided_application(kind: &str, environment: &EnvironmentName) -> RelPath {
    rel(&format!("applications/{}.yaml", provided_name(kind, environment)))
}

/// `root.yaml`
#[must_use]
pub fn root() -> RelPath {
    rel("root.yaml")
}

#[expect(
    clippy::expect_used,
    reason = "names have at most 63 characters and none is special in a path: every such path is valid"
)]
fn rel(path: &str) -> RelPath {
    RelPath::parse(path).expect("a path of validated names")
}
