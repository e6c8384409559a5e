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

// content is what etcd holds of the victims: value and revision by key, which begins with the component.
type content map[string]string

// withEtcd has the shards and the cache server of a cluster store their data in an etcd that the test
// can read while they run.
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

// stored returns what etcd holds of the victims.
func (w *world) stored(t testing.TB, etcd *clientv3.Client) content {
	t.Helper()
	into := content{}
	answer, err := etcd.Get(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.NotEmpty(t, answer.Kvs)
	for _, kv := range answer.Kvs {
		key := string(kv.Key)
		// /<prefix>/<group>/<resource>/[<shard>/]<logical cluster>/…
		segments := strings.Split(key, "/")
		at, revision, of := 4, kv.ModRevision, w.protected
		if segments[1] == cacheServer {
			// Shards may write their replicas again, as they are, and those of their
			// own objects when they come back.
			at, revision, of = 5, 0, w.victims
		}
		if len(segments) > at && strings.HasPrefix(segments[at], ":") {
			at++ // the identity of a bound API
		}
		// Whatever anybody binds is copied there, and says when.
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
			value, revision = lasting(t, value), 0 // the rest says what heartbeats tell
		case strings.Contains(key, "/cache.kcp.io/cachedresources/"):
			value, revision = lasting(t, value), 0 // the rest depends on cache servers that could be asked
		}
		into[key] = fmt.Sprintf("%q at %d", value, revision)
	}
	return into
}

// lasting returns of an object that is stored as JSON what no controller changes because of others:
// the spec, and of a cached resource whose it is, and what it has.
func lasting(t testing.TB, object []byte) []byte {
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

// difference says what became of the victims' objects; empty where nothing did.
func (before content) difference(after content) []string {
	var out []string
	for key, was := range before {
		switch is, kept := after[key]; {
		case !kept:
			out = append(out, key+" is gone")
		case is != was:
			out = append(out, fmt.Sprintf("%s has changed from %s to %s", key, was, is))
		}
	}
	for key := range after {
		if _, had := before[key]; !had {
			out = append(out, key+" is new")
		}
	}
	slices.Sort(out)
	return out
}
