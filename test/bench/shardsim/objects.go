package shardsim

import (
	"crypto/sha256"
	"fmt"
	"math/big"
)

// perOrganization is how many workspaces an organization has.
const perOrganization = 1000

// cluster is the name of the logical cluster of a workspace.
func cluster(number int) string {
	sum := sha256.Sum256(fmt.Append(nil, number))
	return new(big.Int).SetBytes(sum[:]).Text(36)[:16]
}

// Path is the path of a workspace: the first on each shard of each thousand are organizations.
func (s *Shards) Path(number int) string {
	if organization := s.organization(number); organization != number {
		return fmt.Sprintf("root:ws-%d:ws-%d", organization, number)
	}
	return fmt.Sprintf("root:ws-%d", number)
}

// organization is the number of the workspace that has this one, which is itself in root.
func (s *Shards) organization(number int) int {
	index := number / s.Count
	return number%s.Count + index/perOrganization*perOrganization*s.Count
}

// objects returns a Workspace and its LogicalCluster, as a shard stores them.
func (s *Shards) objects(number, revision int) (workspace, logicalCluster string) {
	parent := "root"
	if organization := s.organization(number); organization != number {
		parent = cluster(organization)
	}
	name, shard, of := fmt.Sprintf("ws-%d", number), name(number%s.Count), cluster(number)
	const common = `"uid":"%08x-0000-4000-8000-%012x","resourceVersion":"%d","generation":2,"creationTimestamp":"2026-01-01T00:00:00Z",` +
		`"labels":{"tenancy.kcp.io/phase":"Ready","region":"here"},"finalizers":["core.kcp.io/logicalcluster"],`
	workspace = fmt.Sprintf(`{"apiVersion":"tenancy.kcp.io/v1alpha1","kind":"Workspace","metadata":{"name":%q,`+common+
		`"annotations":{"kcp.io/cluster":%q,"core.kcp.io/shard":%q,"internal.tenancy.kcp.io/cluster":%q,"internal.tenancy.kcp.io/shard":"1tnhwzvk",`+
		`"experimental.tenancy.kcp.io/owner":"{\"username\":\"user-%d\"}"}},"spec":{"type":{"name":"universal","path":"root"},"cluster":%q,"URL":"https://example.com:6443/clusters/%s"},`+
		`"status":{"phase":"Ready","conditions":[{"type":"WorkspaceScheduled","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"},`+
		`{"type":"WorkspaceInitialized","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
		name, number, number, revision, parent, shard, of, number, of, s.Path(number))
	logicalCluster = fmt.Sprintf(`{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster",`+common+
		`"annotations":{"kcp.io/cluster":%q,"core.kcp.io/shard":%q,"kcp.io/path":%q,"internal.tenancy.kcp.io/type":"root:universal",`+
		`"experimental.tenancy.kcp.io/owner":"{\"username\":\"user-%d\",\"groups\":[\"system:authenticated\"]}"}},`+
		`"spec":{"owner":{"apiVersion":"tenancy.kcp.io/v1alpha1","resource":"workspaces","cluster":%q,"name":%q,"uid":"%08x"},"createdBy":{"username":"user-%d"}},`+
		`"status":{"URL":"https://example.com:6443/clusters/%s","phase":"Ready","conditions":[{"type":"WorkspaceInitialized","status":"True","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`,
		number, number, revision, of, shard, s.Path(number), number, parent, name, number, number, s.Path(number))
	return workspace, logicalCluster
}

// root returns root's LogicalCluster.
func root() string {
	return `{"apiVersion":"core.kcp.io/v1alpha1","kind":"LogicalCluster","metadata":{"name":"cluster","uid":"root","resourceVersion":"1","creationTimestamp":"2026-01-01T00:00:00Z",` +
		`"annotations":{"kcp.io/cluster":"root","core.kcp.io/shard":"root"}},"status":{"phase":"Ready"}}`
}

// name is that of a shard.
func name(shard int) string {
	if shard == 0 {
		return "root"
	}
	return fmt.Sprintf("shard-%d", shard)
}
