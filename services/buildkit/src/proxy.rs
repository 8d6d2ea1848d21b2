//! The proxy by which a daemon's builds leave, where there is one that RUN steps have to be told of.
//!
//! The frontend takes these build arguments without a declaration, sets them in the environment of RUN steps in both
//! spellings, and keeps them out of the cache's keys and of the image.

use std::collections::HashMap;

use fabrique_ports::builder::Proxy;

/// Adds the proxy to a solve's attributes. What the registration says itself stays.
pub(crate) fn tell(attributes: &mut HashMap<String, String>, proxy: &Proxy) {
    let except = proxy.except.join(",");
    for (name, value) in [("HTTP_PROXY", &proxy.url), ("HTTPS_PROXY", &proxy.url), ("NO_PROXY", &except)] {
        let own = format!("build-arg:{name}");
        let said = attributes.keys().any(|key| key.eq_ignore_ascii_case(&own));
        if !said {
            attributes.insert(own, value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_told_of_the_proxy_and_a_registrations_own_word_stays() {
        let proxy =
            Proxy { url: "http://proxy:3128".into(), except: vec!["gitea".into(), "registry".into()] };
        let own = ("build-arg:http_proxy".to_owned(), "http://mine:80".to_owned());
        let mut attributes = HashMap::from([own]);
        tell(&mut attributes, &proxy);
        let expected = [
            ("build-arg:http_proxy", "http://mine:80"),
            ("build-arg:HTTPS_PROXY", "http://proxy:3128"),
            ("build-arg:NO_PROXY", "gitea,registry"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(attributes, HashMap::from(expected));
    }
}
