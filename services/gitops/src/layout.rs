//! Where things lie in `cluster/apps`.

use fabrique_core::id::{AppName, EnvironmentName, RelPath};

use crate::{composition, placeholder, registration};

/// The folder of all apps
pub const APPS: &str = "apps";

/// `apps/<app>/app.yaml`
#[must_use]
pub fn registration_of(app: &AppName) -> RelPath {
    rel(&format!("{APPS}/{app}/{}", registration::FILE_NAME))
}

/// The `<app>` of `apps/<app>/app.yaml`, which may be no name of an app; nothing for any other file
#[must_use]
pub fn registered_in(file: &RelPath) -> Option<&str> {
    let (home, name) = file.as_str().rsplit_once('/')?;
    let (folder, app) = home.split_once('/')?;
    (folder == APPS && !app.contains('/') && name == registration::FILE_NAME).then_some(app)
}

/// `apps/<app>`, where everything of an app is
#[must_use]
pub fn home_of(app: &AppName) -> RelPath {
    rel(&format!("{APPS}/{app}"))
}

/// The app whose home a path is, or is below, whether it is registered or not
#[must_use]
pub fn at_home(path: &RelPath) -> Option<AppName> {
    let mut segments = path.as_str().split('/');
    let app = segments.next().filter(|folder| *folder == APPS).and(segments.next())?;
    AppName::parse(app).ok()
}

/// `apps/<app>/<environment>`
#[must_use]
pub fn directory_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("{APPS}/{app}/{environment}"))
}

/// `apps/<app>/<environment>/composition.yaml`
#[must_use]
pub fn composition_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("{APPS}/{app}/{environment}/{}", composition::FILE_NAME))
}

/// `apps/<app>/<environment>/placeholders.yaml`
#[must_use]
pub fn placeholders_of(app: &AppName, environment: &EnvironmentName) -> RelPath {
    rel(&format!("{APPS}/{app}/{environment}/{}", placeholder::FILE_NAME))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_tells_whose_it_is_as_it_was_made() {
        let app = AppName::parse("citation").unwrap();
        let (registration, home) = (registration_of(&app), home_of(&app));
        assert_eq!(registered_in(&registration), Some("citation"));
        assert_eq!(registered_in(&rel("apps/No Name/app.yaml")), Some("No Name"));
        for other in
            ["apps/app.yaml", "apps/citation/prod/app.yaml", "old/citation/app.yaml", "apps/citation"]
        {
            assert_eq!(registered_in(&rel(other)), None, "{other}");
        }
        for path in [registration, home, rel("apps/citation/prod/x/y.yaml")] {
            assert_eq!(at_home(&path).as_ref(), Some(&app), "{path}");
        }
        for other in
            ["apps", "README.md", "applications/citation-prod.yaml", "old/apps/citation", "apps/No Name/x"]
        {
            assert_eq!(at_home(&rel(other)), None, "{other}");
        }
    }
}
