package isolation

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/shardplane/shardplane/pkg/etcd"
)

// content is what etcd holds of the victims: value and revision by component and key.
type content map[string]string

// stored stops the servers that have data, reads what they stored of the
// victims, and starts them again if they are to go on.
func (w *world) stored(t testing.TB, again bool) content {
	t.Helper()
	all := content{}
	for component, dir := range map[string]string{
		"root": filepath.Join(".kcp-0", "data"), "shard-1": filepath.Join(".kcp-1", "data"), "cache-server": filepath.Join(".kcp-cache", "data"),
	} {
		w.Component(component).Stop()
		w.read(t, all, component, filepath.Join(w.Dir, dir))
	}
	if !again {
		return all
	}
	started := []string{"root", "shard-1", "cache-server"}
	for _, component := range started {
		w.Component(component).Launch()
	}
	for _, component := range append(started, "front-proxy") {
		w.Component(component).WaitReady()
	}
	return all
}

func (w *world) read(t testing.TB, into content, component, dir string) {
	t.Helper()
	options := etcd.NewOptions(dir, "/shardplane")
	options.UnsafeNoFsync = true
	handle, err := options.Open(t.Context())
	require.NoError(t, err)
	defer handle.Stop()
	answer, err := handle.Client().Client.Get(t.Context(), "/", clientv3.WithPrefix())
	require.NoError(t, err)
	require.NotEmpty(t, answer.Kvs, "%s has stored nothing", component)
	for _, kv := range answer.Kvs {
		key := string(kv.Key)
		// /<prefix>/<group>/<resource>/[<shard>/]<logical cluster>/…
		segments := strings.Split(key, "/")
		at, revision, of := 4, kv.ModRevision, w.protected
		if component == cacheServer {
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
		case strings.Contains(key, "/core.kcp.io/shards/root/"):
			value, revision = lasting(t, value), 0 // the rest says what heartbeats tell
		case strings.Contains(key, "/cache.kcp.io/cachedresources/"):
			value, revision = lasting(t, value), 0 // the rest depends on cache servers that could be asked
		}
		into[component+key] = fmt.Sprintf("%q at %d", value, revision)
	}
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
