//! What is known of sources on GitHub.

use async_trait::async_trait;
use fabrique_core::id::AppName;
use fabrique_core::upstream::UpstreamState;
use fabrique_ports::PortResult;
use fabrique_ports::upstream::Upstreams;

use crate::connection::Bus;
use crate::kv;
use crate::layout::Store;

#[async_trait]
impl Upstreams for Bus {
    async fn upstream(&self, app: &AppName) -> PortResult<Option<UpstreamState>> {
        let Some(entry) = self.entry(Store::Upstream, app.as_str()).await? else { return Ok(None) };
        Ok(entry.decode()?)
    }

    async fn put_upstream(&self, app: &AppName, state: &UpstreamState) -> PortResult<()> {
        let value = kv::encode("what GitHub said", state)?;
        self.put(Store::Upstream, app.as_str(), value).await?;
        Ok(())
    }
}
