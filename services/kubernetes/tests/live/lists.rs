//! What the entries of one app on the allow-list open to its RUN steps, and to nobody else's.

use std::collections::BTreeMap;

use fabrique_core::id::{AppName, TrustDomain};
use fabrique_kubernetes::network::{AllowList, AppEgress, Egress, HostName};
use fabrique_ports::builder::Need;

use crate::ground::{Ground, lease, lease_for, need};
use crate::steps::{Site, answers, ask, outside};
use crate::workshop::Workshop;

const OWN: &str = "http://permitted.example:8000/";
/// The same host, on a port that is on nobody's list.
const NOBODYS: &str = "http://permitted.example:8001/";

/// A list with one entry: a host and a port for the app `citation`.
fn list() -> AllowList {
    let host = Egress {
        host: HostName::parse("permitted.example").unwrap(),
        port: 8000,
        purpose: "its models".into(),
        cidrs: vec!["198.19.255.10/32".parse().unwrap()],
    };
    let own = AppEgress { trust: TrustDomain::parse("atlas").unwrap(), hosts: vec![host] };
    let apps = BTreeMap::from([(AppName::parse("citation").unwrap(), own)]);
    AllowList { apps, ..AllowList::default() }
}

/// In `userns` the solve's policy judges by app, so that one of the same trust domain, on the very same daemon, is
/// refused.
#[tokio::test]
async fn a_host_of_one_app_is_open_to_its_step_and_refused_to_another_apps_on_the_same_daemon() {
    let list = list();
    let Some(ground) = Ground::with_list("userns", &list).await else { return };
    let _alone = outside().await;
    let _sites =
        tokio::join!(Site::serve(ground.cluster, 8000, None), Site::serve(ground.cluster, 8001, None),);
    let placement = ground.placement("worker-1").await;
    let leased = lease(&placement, "citation").await;
    let workshop = Workshop::new(&ground).await;
    let builder = workshop.builder_of(&list);
    for (app, code) in [("citation", "200"), ("other", "403")] {
        // Steps are cached by what they say, for all apps of a daemon.
        let (own, nobodys) = (format!("{OWN}?{app}"), format!("{NOBODYS}?{app}"));
        let dockerfile = ask(&ground.cluster.images().debian, &[&own, &nobodys]);
        let output = workshop.output(&builder, &leased.daemon, app, &dockerfile).await;
        let answered = answers(&output);
        assert_eq!((answered[&own].as_str(), answered[&nobodys].as_str()), (code, "403"), "{app}\n{output}");
        // It is told without its query, which may hold what nobody is to read.
        let refused = output.contains(&format!("refused, not on the allow list: {OWN}\n"));
        assert_eq!(refused, app == "other", "{output}");
    }
}

/// In `rootless` the network policy judges, which knows pods by their trust domain.
#[tokio::test]
async fn a_host_of_one_app_is_open_to_its_rootless_step_and_closed_to_another_domains() {
    let list = list();
    let Some(ground) = Ground::with_list("rootless", &list).await else { return };
    let _alone = outside().await;
    let _sites =
        tokio::join!(Site::serve(ground.cluster, 8000, None), Site::serve(ground.cluster, 8001, None),);
    let placement = ground.placement("worker-1").await;
    let strange = Need { trust: TrustDomain::parse("zephyr").unwrap(), ..need("other", 60) };
    let (own, strange) = tokio::join!(lease(&placement, "citation"), lease_for(&placement, strange));
    let workshop = Workshop::new(&ground).await;
    let builder = workshop.builder_of(&list);
    let dockerfile = ask(&ground.cluster.images().debian, &[OWN, NOBODYS]);
    for (app, daemon, code) in [("citation", &own.daemon, "200"), ("other", &strange.daemon, "000")] {
        let output = workshop.output(&builder, daemon, app, &dockerfile).await;
        let answered = answers(&output);
        assert_eq!((answered[OWN].as_str(), answered[NOBODYS].as_str()), (code, "000"), "{app}\n{output}");
    }
}
