package isolation

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/shardplane/shardplane/test/harness"
)

// content contains values and revisions in etcd by key. The key starts with the component.
type content map[string]string

// withEtcd configures the components to use an etcd that the test can read.
func withEtcd(t testing.TB, o harness.Options) (harness.Options, *clientv3.Client) {
	t.Helper()
	url := harness.Etcd(t, transport.TLSInfo{})
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	require.NoError(t, err)
	t.Cleanup(func() { _ = client.Close() })
	for _, component := range []string{"root", "shard-1", cacheServer} {
		o.ExtraArgs[component] = []string{"--etcd-servers=" + url, "--etcd-prefix=/" + component}
	}
	return o, client
}

// stored returns the objects of the victims in etcd.
func (w *world) stored(t testing.TB, etcd *clientv3.Client) content {
	t.Helper()
	into := content{}
	response, err := etcd.Get(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.NotEmpty(t, response.Kvs)
	for _, kv := range response.Kvs {
		key := string(kv.Key)
		// /<prefix>/<group>/<resource>/[<shard>/]<logical cluster>/…
		segments := strings.Split(key, "/")
		at, revision, of := 4, kv.ModRevision, w.protected
		if segments[1] == cacheServer {
			// Shards may write replicas again without changes, e.g. after a restart.
			at, revision, of = 5, 0, w.victims
		}
		if len(segments) > at && strings.HasPrefix(segments[at], ":") {
			at++ // the identity of a bound API
		}
		// Bound schemas are copied here with timestamps.
		if strings.Contains(key, "/internal.shardplane.io/boundschemas/") {
			continue
		}
		if len(segments) <= at || !slices.Contains(of, segments[at]) || strings.HasSuffix(key, "/"+pulse) {
			continue
		}
		value := kv.Value
		switch {
		case strings.Contains(key, "/coordination.k8s.io/leases/root/kube-system/shard-"):
			continue // a heartbeat
		case strings.HasSuffix(key, "/coordination.k8s.io/leases/system:admin/default/shard-controllers"):
			continue // the leader renews it
		case strings.Contains(key, "/core.kcp.io/shards/root/"):
			value, revision = stableFields(t, value), 0 // heartbeats change the status
		case strings.Contains(key, "/cache.kcp.io/cachedresources/"):
			value, revision = stableFields(t, value), 0 // the status depends on reachable cache servers
		}
		into[key] = fmt.Sprintf("%q at %d", value, revision)
	}
	return into
}

// stableFields returns the fields of an object that controllers do not change: the spec, and the
// identity and counts of a cached resource.
func stableFields(t testing.TB, object []byte) []byte {
	t.Helper()
	var parts struct {
		Spec   json.RawMessage
		Status struct {
			IdentityHash   string
			ResourceCounts json.RawMessage
		}
	}
	require.NoError(t, json.Unmarshal(object, &parts))
	return fmt.Appendf(nil, "%s %s %s", parts.Spec, parts.Status.IdentityHash, parts.Status.ResourceCounts)
}

// difference returns the changes between two contents.
func (before content) difference(after content) []string {
	var out []string
	for key, was := range before {
		switch is, kept := after[key]; {
		case !kept:
			out = append(out, key+" was removed")
		case is != was:
			out = append(out, fmt.Sprintf("%s has changed from %s to %s", key, was, is))
		}
	}
	for key := range after {
		if _, had := before[key]; !had {
			out = append(out, key+" was added")
		}
	}
	slices.Sort(out)
	return out
}
