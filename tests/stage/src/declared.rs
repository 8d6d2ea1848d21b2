//! What apps declare, and what the cluster offers them.

/// Where an app's repository has its declaration.
pub const MANIFEST: &str = "code-location.manifest.yaml";

/// A contract of version 3 that offers nothing but places to run.
pub const CONTRACT: &str = "apiVersion: fabrique/v1
kind: Contract
version: 3
accepts: [3]
endpoints:
  gitea: http://gitea.example:3000
  argocd: https://argocd.example
  registry: registry:80
  nats: nats://nats.example:4222
environments: { prod: {} }
";
